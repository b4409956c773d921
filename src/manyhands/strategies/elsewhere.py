"""Names of strategies in other projects, and what each is called here."""

ELSEWHERE = {
    **dict.fromkeys(
        ("ddp", "distributeddataparallel", "dataparallel", "dp", "horovod", "ringallreduce"),
        "allreduce()",
    ),
    **dict.fromkeys(("mirrored", "multiworkermirrored", "collectiveallreduce"), "allreduce()"),
    **dict.fromkeys(("fsdp", "fsdp1", "fsdp2", "fullyshard"), "fully_sharded()"),
    **dict.fromkeys(("fullyshardeddataparallel", "fullyshardedsharding"), "fully_sharded()"),
    **dict.fromkeys(("zero1", "zerostage1", "zeroredundancyoptimizer"), "zero(stage=1)"),
    **dict.fromkeys(("zero2", "zerostage2", "deepspeed"), "zero(stage=2)"),
    **dict.fromkeys(("zero3", "zerostage3"), "zero(stage=3)"),
    **dict.fromkeys(("parameterserver", "ps", "async", "asgd", "downpour"), "asynchronous()"),
    **dict.fromkeys(("sync", "syncreplicas", "syncsgd", "bsp"), "synchronous()"),
    **dict.fromkeys(("tp", "tensorparallel", "megatron"), "tensor(ways=2)"),
    **dict.fromkeys(("pp", "pipelineparallel", "gpipe", "pipedream"), "pipeline()"),
    **dict.fromkeys(("cp", "contextparallel", "sequenceparallel", "sp"), "context(ways=2)"),
    **dict.fromkeys(("hsdp", "meshparallel", "3d"), "hybrid()"),
    **dict.fromkeys(("adpsgd", "dpsgd", "decentralized"), "gossip()"),
    **dict.fromkeys(("sgp", "pushsum"), "push_sum()"),
    **dict.fromkeys(("gradientsharing", "strom", "sharedtraining"), "broadcast()"),
    **dict.fromkeys(("localsgd", "fedavg", "postlocalsgd"), "local_sgd()"),
    **dict.fromkeys(("centralstorage",), "central_storage()"),
    **dict.fromkeys(("onedevice", "singledevice", "none"), "single()"),
    **dict.fromkeys(("elasticaveraging", "eamsgd"), "easgd()"),
}
"""By the name in lower case, without underscores and without "strategy" at its end."""
