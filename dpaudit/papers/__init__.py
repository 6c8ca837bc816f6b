"""Tables and figures of papers, published beside ours: does a paper's result come out?"""
