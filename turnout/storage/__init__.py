"""A run's folder: storing, committing, keeping and reading back, all without knowing of sessions or controllers.

Places
    `location`: a path on some filesystem, with the few operations that are safe to be cut off;
    `run_folder`: what lies where in a run's folder, whose ``run.json`` counts its attempts;
    `lease` gives a run to one driver at a time.

Writing
    `commit` makes the folders of many ranks one checkpoint, or nothing, or takes a rank's files aside for a commit that
    comes later; it stands on `sources` (what is to be stored), `upload` and `parallel`;
    `record` is what makes a folder a checkpoint, and says why one is not what its record says;
    `retention` removes what need not be kept;
    `history` appends every report, and seals them in the end; `logs` keeps what ranks print.

Reading
    `reading` lists the checkpoints that count, gives the one to go on from, and tidies up;
    `history` and `logs` give back what they keep.

The order for a driver: ``lease.acquire()``, ``run.create(spec)``, and for every attempt ``begin_attempt``,
``clean_uncommitted``, ``newest_verified``, ``set_resume_point(resume_point(record))``, then the workers.

Nothing is imported here: a rank imports what it needs for a commit, and the driver the rest.
"""
