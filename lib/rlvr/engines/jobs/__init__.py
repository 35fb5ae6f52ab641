"""Experiments as whole verl jobs on a Ray cluster: settings, command, cost, submission (``docs/cluster.md``).

Nothing here imports verl, or Ray before it is talked to, so that a laptop prints a command and plans its
cost; :mod:`rlvr.engines.verl` is what runs inside of the job.

| module | |
| --- | --- |
| ``sections``, ``experiments`` | the types of ``experiments.yaml`` of a scale; every number with its source |
| ``command`` | an experiment as verl's command |
| ``hardware``, ``plan`` | what it costs |
| ``data`` | its parquet files |
| ``start`` | what the job runs on the cluster: checks, then verl |
| ``client``, ``jobs``, ``state``, ``progress`` | submit, follow, attach, resume; when it is done |
| ``changed`` | whether a folder is of these settings |
| ``embedded``, ``cpu``, ``policy`` | an arm of a scale file as a job, on a CPU |
| ``local_ray`` | a Ray of this machine for as long as jobs need one |
| ``collect`` | what a job left, as a run of the local engine |
| ``rows`` | problems as rows of verl's parquet files |
| ``evaluation`` | the evaluation file of an experiment |
| ``faults``, ``redaction`` | what a log says, and what no log may say |
| ``commands`` | ``rlvr job`` |
"""
