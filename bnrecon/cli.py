def main():
    import sys, os
    import hydra
    from bnrecon import config, hardware
    hardware.keep_freed_memory()
    config.register_schema()
    os.environ["HYDRA_FULL_ERROR"]="1"
    @hydra.main(version_base="1.3", config_path="pkg://bnrecon.configs", config_name="run")
    def go(c):
        cfg=config.from_hydra(c)
        from bnrecon.targets.obtain import obtain_target
        from bnrecon.data import load, DataSpec
        import dataclasses
        from bnrecon.interruption import StopRequest
        d=load(DataSpec(**dataclasses.asdict(cfg.data)))
        with StopRequest() as s:
            t=obtain_target(cfg,d,hardware.resolve_device(cfg.device),s)
        print(t.folder,t.about["accuracy"],t.about["seconds"])
    sys.argv=[sys.argv[0]]+sys.argv[2:]
    try: go()
    except config.CONFIG_ERRORS as e:
        print(repr(str(e)), repr(str(e.__cause__)))
        print("->",config.explain(e)); sys.exit(2)
