#!/bin/bash
# tune.sh STAGE SECONDS OUT: DeepSpeed's autotuner on train.py with ZeRO STAGE, at most SECONDS.
set -u; here=$(cd "$(dirname "$0")" && pwd); stage=$1 limit=$2 out=$3
work=/tmp/tuner/z$stage; rm -rf $work; mkdir -p $work $out; cd $work; cp $here/train.py .
cat > ds.json <<J
{"optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
 "bf16": {"enabled": true}, "gradient_clipping": 1.0,
 "zero_optimization": {"stage": $stage},
 "autotuning": {"enabled": true, "fast": true, "max_train_batch_size": ${TUNER_GLOBAL:-256}, "overwrite": true,
   "results_dir": "$work/results", "exps_dir": "$work/exps"}}
J
began=$(date +%s.%N)
timeout -k 5 $limit deepspeed --num_gpus 1 --master_port $((29600 + 100 * stage)) --autotuning tune train.py --deepspeed_config ds.json > log.txt 2>&1; rc=$?
ended=$(date +%s.%N)
{ echo "ZeRO $stage: exit $rc after $(python3 -c "print(round($ended-$began,1))") s (limit $limit s)"
  cat results/summary.txt 2>/dev/null; echo
  python3 - $work <<'E'
import glob, json, os, sys
rows = []
for folder in sorted(glob.glob(sys.argv[1] + "/results/*/"), key=os.path.getmtime):
    name = os.path.basename(folder.rstrip("/"))
    text = open(folder + "stderr.log", errors="replace").read() + open(folder + "stdout.log", errors="replace").read() if os.path.exists(folder + "stderr.log") else ""
    lines = [line.split("s, ")[1] for line in text.splitlines() if line.startswith("step ") and "tokens/s" in line]
    metric = json.loads(open(folder + "metrics.json").readline()) if os.path.exists(folder + "metrics.json") else None
    began, ended = os.path.getmtime(folder + "ds_config.json"), os.path.getmtime(folder + "stderr.log")
    print(f"{name:32s} {ended - began:6.1f} s", "out of memory" if "OutOfMemory" in text else "", lines[-2:] , metric)
E
  grep -E "tuning_micro_batch_sizes =|optimal|plateau|found as max|No need|calculated_max" log.txt | sed 's/.*\] //' | cut -c1-200
} | tee $out/z$stage.txt
tail -c 3000 log.txt > $out/z$stage.log; ls results/*/ -d | wc -l
