"""Client functions as programs: traced once for many clients, cut at their gradients, run op by op or compiled.

Nothing here knows an algorithm or a problem. A trace holds every operation of a work for a whole chunk of
clients, so running it costs no Python of the work, no autograd and no vmap.
"""
