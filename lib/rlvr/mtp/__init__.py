"""Multi-token prediction (MTP): modules on a backbone that predict the tokens after the next one.

    modules = MtpModules(model, blocks=5)      # any decoder with a plain list of layers
    loss, by_module = warm_up_loss(model, modules, input_ids, attention_mask, response_mask)
    out = mtp_outputs(model, modules, input_ids, attention_mask, response_mask)
    objectives.mpo(out.log_prob, old.log_prob, advantages, response_mask,
                   mtp_log_prob=out.mtp_log_prob, old_mtp_log_prob=old.mtp_log_prob)

Time. A sequence is z_0 .. z_{L-1}: a prompt, then the response y_0 .. y_{T-1} (counted from 0 here). The
state of position t of the response is everything before y_t; the backbone computes it at the token before
y_t. From there the backbone predicts y_t, and module k = 2..K predicts y_{t+k-1}.

What module k is fed [choice: variant; the paper says only that a module is a deep copy of the backbone's last
layer and head on its hidden states]. With h^1 the backbone's hidden states (detached) and every layer causal:

    parallel   x^k_j = h^1_j                                             [public: Medusa, Gloeckle et al.]
    chained    x^k_j = W_k [RMSNorm(h^{k-1}_j); RMSNorm(E(z_{j+k-1}))]   [public: DeepSeek-V3]
    h^k = layer_k(x^k),   log pi^(k)(. | j) = log_softmax(head_k(RMSNorm_k(h^k_j)) / temperature)

at the token j before y_t. So a chained module has seen the tokens between y_t and its target, as the true
response has them; a parallel one has not. Neither sees its target or anything later.

Deep copies: the layer, the final norm and the head. New are the chained variant's W_k, which starts as the
identity on the hidden half and 0 on the embedding half, and its two norms, with weight 1 [choice]; E is the
backbone's table, detached. ``hidden`` says which h^1: "last", the last layer's output before the final norm,
or "trunk", what that layer was given, on which a parallel module starts out as the backbone itself [choice].
Positions (rotary angles) are those of j for every module [choice].

``rlvr.engines.local.mtp`` computes the same on the local engine's packed batches, from the same files.
"""

from rlvr.mtp.files import FILE, load_modules, save_modules
from rlvr.mtp.losses import cross_entropy, entry_counts, predicted_rank
from rlvr.mtp.modules import HIDDEN, VARIANTS, MtpModules
from rlvr.mtp.outputs import MtpOutputs, mtp_outputs, warm_up, warm_up_loss
from rlvr.mtp.size import PAPER_MODELS, paper_config, size_by_blocks

__all__ = [
    "FILE",
    "HIDDEN",
    "PAPER_MODELS",
    "VARIANTS",
    "MtpModules",
    "MtpOutputs",
    "cross_entropy",
    "entry_counts",
    "load_modules",
    "mtp_outputs",
    "paper_config",
    "predicted_rank",
    "save_modules",
    "size_by_blocks",
    "warm_up",
    "warm_up_loss",
]
