"""Flags of mammoth that have another name here, or none, and what to do instead, for error lines.

docs/from_mammoth.md has the same as a table, with the reasons.
"""

_REMOVE = "remove it, there is no equivalent"

ADVICE = {
    "optim_nesterov": "use --nesterov, without a value",
    "fitting_mode": "use --n_iters for steps or --n_epochs for epochs",
    "lr_scheduler": "use --lr_milestones, such as --lr_milestones 35,45",
    "sched_multistep_lr_gamma": "use --lr_factor",
    "joint": "use --model joint",
    "permute_classes": "use --class_order_seed, by default that of --seed; 0 keeps the data set's order",
    "validation_mode": "remove it, --validation evaluates all tasks seen so far",
    "eval_epochs": "use --eval_every, a number of steps",
    "enable_other_metrics": "remove it, every record has forgetting, BWT and FWT",
    "inference_only": "use --eval_only RUN_FOLDER, for a run with --save_model",
    "loadcheck": "remove it, the same command resumes a run; --eval_only RUN_FOLDER evaluates a saved network",
    "savecheck": "remove it, every run has checkpoints and the same command resumes it; see --checkpoint_every",
    "ckpt_name": "remove it, folders are named by the configuration",
    "nowand": "remove it, that is the default; --wandb_project logs to Weights & Biases",
    "load_best_args": "remove it, published settings are the default; --dry_run prints them",
    "dataset_config": "use --config FILE",
    "alpha_lip_lambda": "use --alpha_lip",
    "beta_lip_lambda": "use --beta_lip",
    "O": "use --compile or --amp bfloat16",
    "disable_log": "remove it, a run always writes its record",
    "wandb_name": "remove it, pages have the run's name",
    "distributed": "remove it, a run has one device",
    "start_from": _REMOVE,
    "noise_type": _REMOVE,
    "noise_rate": _REMOVE,
    "label_perc": _REMOVE,
    "eval_future": _REMOVE,
    "scheduler_mode": _REMOVE,
}
