"""What is asked of Ray wherever workers are placed on a cluster.

`connection` joins it; `placement` sets room aside, and `shortage` says what it lacks; `seats` says who is which rank,
and `devices` what each sees; `notices` tells of nodes that go; `processes` ends what does not hear Ray; `runtime_env`
is what workers bring along. Nothing is imported here, as every rank imports `seats` and needs no other.
"""
