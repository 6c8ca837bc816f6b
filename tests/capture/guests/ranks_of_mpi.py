"""Three ranks of MPI that send in the ways of mpi4py; each prints what it got.

mpiexec -n 3 python ranks_of_mpi.py
"""

import os

import numpy as np
from mpi4py import MPI


def got(source, value):
    os.write(1, f"{source}->{ME} {np.asarray(value, float).ravel().tolist()}\n".encode())


WORLD = MPI.COMM_WORLD
ME, N = WORLD.Get_rank(), WORLD.Get_size()
OTHERS = [rank for rank in range(N) if rank != ME]
X = np.array([10.0 * ME, 1.0])


def point_to_point():
    right, left = (ME + 1) % N, (ME - 1) % N
    request = WORLD.isend({"step": ME, "w": X}, dest=right, tag=3)
    got(left, WORLD.recv(source=left, tag=3)["w"])
    request.wait()
    room = np.empty(2)
    request = WORLD.Isend([X + 1, MPI.DOUBLE], right)
    WORLD.Recv(room, left)
    request.Wait()
    got(left, room)
    WORLD.Sendrecv(X + 2, right, 0, room, left)
    got(left, room)


def collective():
    found = WORLD.bcast(X + 3 if ME == 1 else None, root=1)
    if ME != 1:
        got(1, found)
    for rank, value in enumerate(WORLD.allgather(X + 4)):
        if rank != ME:
            got(rank, value)
    rows = np.empty((N, 2))
    WORLD.Gather(X + 5, rows if ME == 0 else None)
    if ME == 0:
        for rank in OTHERS:
            got(rank, rows[rank])
    own = np.empty(2)
    WORLD.Scatter(np.arange(2.0 * N) if ME == 2 else None, own, root=2)
    if ME != 2:
        got(2, own)
    for rank, value in enumerate(WORLD.alltoall([X + 10 * to for to in range(N)])):
        if rank != ME:
            got(rank, value)


def reduction():
    """The contributions of others, which the sum is made of."""
    total = np.empty(2)
    WORLD.Allreduce(X, total, op=MPI.SUM)
    for rank in OTHERS:
        got(rank, [10.0 * rank, 1.0])
    assert total.tolist() == [10.0 * sum(range(N)), N]
    pair = WORLD.Split(0 if ME else 1, ME)  # of 1 and 2
    if ME:
        other = pair.sendrecv(X + 6, dest=1 - pair.Get_rank())
        got(3 - ME, other)


def persistent():
    """Requests that send what their buffers hold whenever they are started."""
    right, left, own, room = (ME + 1) % N, (ME - 1) % N, X + 7, np.empty(2)
    both = [WORLD.Send_init(own, right), WORLD.Recv_init(room, left)]
    for _ in range(2):
        MPI.Prequest.Startall(both)
        MPI.Request.Waitall(both)
        got(left, room)
        own += 1
    for request in both:
        request.Free()


def window():
    """What others put into this rank's memory."""
    room = np.zeros((N, 2))
    shared = MPI.Win.Create(room, disp_unit=room.itemsize, comm=WORLD)
    shared.Fence()
    for rank in OTHERS:
        shared.Put(X + 8, rank, target=2 * ME)
    shared.Fence()
    for rank in OTHERS:
        got(rank, room[rank])
    shared.Free()


if __name__ == "__main__":
    point_to_point()
    collective()
    reduction()
    persistent()
    window()
