"""NVFlare (https://nvidia.github.io/NVFlare) as the wire: two couriers inside its job processes, and the processes.

coordinator -- socket -- controller courier -- NVFlare server == NVFlare client -- executor courier -- socket -- worker

One job process per site stays for the whole run, so a phase takes a fraction of a second. Neither courier knows torch,
a problem or an algorithm: they carry bytes. Nothing is imported here, because NVFlare imports this package in every
process that it starts.
"""
