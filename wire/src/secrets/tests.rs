//! Tests of what may be a secret, and of how much is shown.

use super::*;

#[test]
fn names_of_secrets() {
    for name in [
        "NCCL_API_KEY",
        "TORCH_HUB_TOKEN",
        "cuda_password",
        "UCX_AUTH",
        "FI_CREDENTIALS",
        "NCCL_NET_JWT",
        "TORCH_HF_PAT",
    ] {
        assert!(is_secret(name), "{name}");
    }
    for name in [
        "NCCL_DEBUG",
        "OMP_NUM_THREADS",
        "UCX_TLS",
        "NCCL_IB_PKEY",
        "PYTORCH_CUDA_ALLOC_CONF",
        "NCCL_CONF_PATH",
    ] {
        assert!(!is_secret(name), "{name}");
    }
}

#[test]
fn names_of_arguments_that_are_secrets() {
    for name in
        "wandb-api-key hf_token db.password apiKey aws-secret-access-key auth PAT wandbkey hftoken clientsecret \
         privatekey accountkey sshkey hf_login userpass passcode env env_vars export headers otel-headers \
         slack_webhook tokenizer_key DB_PASS AWS_ACCESS api_tokens reward_model.api_key label_studio_api_key \
         image.hub_token moe.hf_token text.key max.tokens api_key_value input-api-key hub_token_start"
            .split_whitespace()
    {
        assert!(is_secret_argument(name), "{name}");
    }
    for name in [
        "tokenizer-model",
        "tokens_per_batch",
        "num_key_value_heads",
        "passes",
        "author",
        "lr",
        "data-path",
        "keyword_filter",
        "moe-token-dispatcher-type",
        "pad_token_id",
        "num_tokens",
        "model.key_dim",
        "data.prompt_key",
        "data.image_key",
        "loss.token_level",
        "image_token_index",
        "tiktoken-pattern",
        "data.reward_fn_key",
        "chosen_key",
        "key_proj",
        "ppo_max_token_len_per_gpu",
        "rollout.stop_token_ids",
        "calculate-per-token-loss",
        "apply-query-key-layer-scaling",
        "passage_max_len",
        "pin_memory",
    ] {
        assert!(!is_secret_argument(name), "{name}");
    }
}

#[test]
fn a_word_further_off_changes_nothing() {
    let many = "key-dim-".repeat(1 << 16);
    assert!(!is_secret_argument(&many) && is_secret_argument(&format!("{many}a-key-b-dim")));
}

#[test]
fn names_that_are_secrets_themselves() {
    for name in ["dXNlcjpodW50ZXIy", "hf_abcdefghijklmnopqrst", "3f2b8c1d9a7e6f5b4c3d"] {
        assert!(is_secret_name(name), "{name}");
    }
    for name in ["actor.optim.adam_beta1", "model/optimizer", "use_qk_norm", "bf16", "data.train_files"] {
        assert!(!is_secret_name(name), "{name}");
    }
}

#[test]
fn values_that_are_secrets() {
    for value in [
        "https://mirror/x?token=hf_abcdefghijklmnopqrst",
        "https://mirror/x?anything",
        "ada:PW@proxy:3128",
        "http://ada:PW@proxy",
        "--dump_to=gs://b?sig=x",
        "--password=x",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.sig",
        "a,hf_abcdefghijklmnopqrst",
        "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
        "ya29.a0AfB_byCd3fGh",
        "wandb_v1_abcdefgh",
        "s3://bucket/token=hunter2",
        "--quiet --hf-token hunter2",
        "Bearer hunter2",
        "http://ada:PW@sha256@proxy",
    ] {
        assert!(is_secret_value(value), "{value}");
    }
    for value in [
        "mlx5_0:1,mlx5_1:1",
        "expandable_segments:True,max_split_size_mb:512",
        "=eth0,eth1",
        "--xla_gpu_enable_latency_hiding_scheduler=true",
        "/opt/amazon/ofi/lib:/usr/lib",
        "/opt/venv:/home/ada/private:/usr/lib",
        "gs://bucket/dump",
        "tcp://10.0.0.1:3000",
        "^openib",
        "sk-lake",
        "/models/hf_checkpoints/llama-3-70b",
        "hf_pretrained_transformers_of_ada",
        "registry:5000/llm/train@sha256:3f2b8c1d",
        "/data/processed/RedPajama/Shards/TrainA1",
        "--xla_a=1 --max-tokens 8",
        "--xla_of=keys --xla_b=2",
        "",
    ] {
        assert!(!is_secret_value(value), "{value}");
    }
}

#[test]
fn what_is_no_secret_by_name_and_value_is_shown() {
    use Shown::{Hash, Name, Nothing, Value};
    const LONG: &str = "/lustre/fsw/portfolios/llm/users/ada/datasets/slimpajama/tokenized/en_text_document";
    for (key, value, expected) in [
        ("arg.lr", "3e-4", Value),
        ("arg.frobnicate", "[1,2, 3]", Value),
        ("arg.frobnicate", "alltoall", Value),
        ("arg.tokenizer-type", "GPT2BPETokenizer", Value),
        ("arg.tokenizer-type", "GPTSentencePieceTokenizer", Value),
        ("arg.moe-token-dispatcher-type", "alltoall", Value),
        ("arg.data-path", "/data/c4", Value),
        ("arg.fsdp", "full_shard auto_wrap", Value),
        ("arg.pin_memory", "True", Value),
        ("arg.max_new_tokens", "512", Value),
        ("arg.model.kv_key_dim", "128", Value),
        ("git_sha", "3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d6e5f4a3b", Value),
        ("email", "ada@example.org", Value),
        ("team", "ML infrastructure", Value),
        ("client", "stepwatch-python/1.4.0", Value),
        ("version", "2.9.0+cu128", Value),
        ("arg.n", "8", Value),
        ("arg.p", "hunter2", Nothing),
        ("arg.p", "123456", Nothing),
        ("arg.password", "123456", Nothing),
        ("arg.token", "123456", Nothing),
        ("arg.p", "given", Value),
        ("arg.use_auth_token", "True", Value),
        ("env", "prod", Value),
        ("environment", "Production", Value),
        ("env", "hunter2", Nothing),
        ("env_key", "prod", Nothing),
        ("arg.reward_model.api_key", "hunter2", Nothing),
        ("arg.model", "/models/hf_checkpoints/llama-3-70b", Value),
        ("arg.global-tokens", "4194304", Value),
        ("arg.tokens", "hunter2", Nothing),
        ("arg.num_envs", "4096", Value),
        ("arg.fsdp_transformer_layer_cls_to_wrap", "Qwen2DecoderLayer", Value),
        ("arg.model_class", "Qwen2MoeForCausalLM", Value),
        ("arg.data-path", "s3://bucket/c4", Value),
        ("arg.data-path", "0.5 s3://bucket/c4 0.5 gs://bucket/pile", Value),
        ("arg.data-path", "https://mirror/c4", Name),
        ("arg.data.s3", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", Nothing),
        ("arg.data-path", LONG, Hash),
        ("arg.moe-layer-freq", "([0]*3+[1]*58)", Value),
        ("arg.pipeline-model-parallel-layout", "Et*3|(tt|)*29,m|L", Value),
        ("arg.data.train_files", "['/data/a.parquet', '/data/b.parquet']", Value),
        ("arg.output-dir", LONG, Name),
        ("arg.frobnicate", LONG, Name),
        ("arg.comet", "3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d6e5f4a3b", Name),
        ("arg.model", "3f2b8c1d9a7e6f5b4c3d2e1f0a9b8c7d6e5f4a3b", Name),
        ("arg.comet", "3f2b8c1d9a7e6f5b", Name),
        ("arg.db", "{user:ada,password:hunter2}", Nothing),
        ("arg.storage_options", r#"{"key":"minio","secret":"minio123"}"#, Nothing),
        ("arg.model", "{a:hunter2}", Name),
        ("arg.slack", "https://hooks.slack.com/services/T1/B2/x", Name),
    ] {
        assert_eq!(shown(key, value), expected, "{key} {value}");
    }
}

proptest::proptest! {
    #[test]
    fn a_name_of_a_secret_shows_no_value(
        before in "((my|db|hub|x1)[-_.])?",
        word in "api_?key|[a-z]{1,5}key|hf_?token|client_?secret|user_?pass|passcode|[a-z]{1,5}_?login|webhook\
            |credentials?|authorization|license|otel-headers|env|env_vars|session|bearer|pwd",
        value in "[ -~]{0,40}",
    ) {
        proptest::prop_assume!(!is_one_of(FLAGS, &value) && !is_one_of(ENVIRONMENTS, &value));
        let name = format!("arg.{before}{word}");
        proptest::prop_assert_eq!(shown(&name, &value), Shown::Nothing);
    }

    #[test]
    fn what_is_shown_is_short_and_no_token(
        name in "[a-z]{2,9}(_[a-z]{2,9})?",
        value: String,
        hex in "[0-9a-f]{32,64}",
    ) {
        if shown(&name, &value) == Shown::Value {
            proptest::prop_assert!(value.len() <= 64 && value.is_ascii());
        }
        let is_commit = OF_COMMIT.iter().any(|word| name.contains(word));
        let is_number = hex.parse::<f64>().is_ok();
        let is_likely = is_mixed(&hex) && changes(&hex) >= CHANGES;
        if !is_commit && !is_number && is_likely {
            proptest::prop_assert_ne!(shown(&name, &hex), Shown::Value);
        }
    }
}
