"""A loaded model with everything a request needs: prompt layout, KV buffers, the store, the server's defaults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from engine.answer.constraint import Constraints
from engine.chains.segments import root_of
from engine.chains.tree import Chains
from engine.families.base import Family
from engine.messages import CacheOptions, EngineInfo, ImageInput
from engine.passes.kv import KVPool
from engine.policies.base import SelectingPolicy, budget
from engine.policies.choice import Choice
from engine.policies.known import POLICIES, make_policy
from engine.prompt.chat import ChatPrompt
from engine.settings import Defaults
from store.open import Store
from store.records.entry import ImageKV
from store.records.keys import ModelKey, SegmentKey, VisualKey


@dataclass(frozen=True, slots=True)
class Runtime:
    """`refused` is the start-up gate's reason to refuse reuse on this model, None where it passed. `chains` hold
    nothing unless given a budget."""

    family: Family
    prompt: ChatPrompt
    pool: KVPool
    store: Store[ImageKV]
    model_key: ModelKey
    namespace: str
    defaults: Defaults
    refused: str | None
    constraints: Constraints
    chains: Chains = field(default_factory=lambda: Chains(0))

    @property
    def lossless(self) -> bool:
        """Whether a restored entry is what was computed, bit for bit."""
        return self.model_key.codec == "raw"

    def chain_root(self, tenant: str) -> bytes:
        """What names of a tenant's chains begin with."""
        return root_of(self.namespace, tenant, self.model_key.digest)

    def segment_key(self, tenant: str, name: bytes, quality: str, open: bool = False) -> SegmentKey:
        """The key of a segment of a tenant's chains (see `store.records.keys`)."""
        return SegmentKey(self.namespace, tenant, self.model_key, name, quality, open)

    def key(self, tenant: str, image: ImageInput) -> VisualKey:
        return self.key_of(tenant, image.digest, image.width, image.height)

    def key_of(self, tenant: str, digest: bytes, width: int, height: int) -> VisualKey:
        """The key of a tenant's image by its canonical pixel digest."""
        return VisualKey(self.namespace, tenant, self.model_key, digest, width, height)

    def choose(self, cache: CacheOptions) -> Choice:
        """Raises `UnknownPolicy` or `InvalidRefreshRatio`."""
        chain = cache.chain or self.defaults.chain
        reads = chain != "off" and cache.mode in ("auto", "read")
        keeps = chain != "off" and cache.mode in ("auto", "rewrite")
        choice = self._choose_policy(cache)
        # What answers exactly, or without regard to what is held, takes no text of another history.
        turns = (cache.turns or self.defaults.turns) if chain == "auto" and choice.ratio < 1 else "compute"
        return replace(choice, chain=chain, turns=turns, reads_chains=reads, keeps_chains=keeps)

    def _choose_policy(self, cache: CacheOptions) -> Choice:
        defaults = self.defaults.options if cache.policy is None else {}
        policy = make_policy(cache.policy or self.defaults.policy, {**defaults, **cache.options})
        ratio = self.defaults.refresh_ratio if cache.refresh_ratio is None else cache.refresh_ratio
        budget(ratio, 0)
        if isinstance(policy, SelectingPolicy):
            policy.plan(
                self.family.shape, 1
            )  # layers that this model does not have are found here, not in mid-answer
        if policy.fixed_ratio is not None:
            ratio = policy.fixed_ratio
        if self.refused is not None and policy.uses_store:
            return Choice(make_policy("full", {}), 1.0, f"reuse is refused for this model: {self.refused}")
        refine = self.defaults.refine if cache.refine is None else cache.refine
        return Choice(policy, ratio, refine=refine if policy.uses_store and ratio < 1 else 0)

    def info(self) -> EngineInfo:
        """What the HTTP side shows and checks against."""
        return EngineInfo(
            model=self.model_key.model_id,
            max_context=self.family.max_context,
            policies=tuple(sorted(POLICIES)),
            default_policy=self.defaults.policy,
            default_refresh_ratio=self.defaults.refresh_ratio,
            device=str(self.family.device),
            dtype=str(self.family.dtype).removeprefix("torch."),
        )
