/* SPDX-License-Identifier: GPL-2.0-or-later */
/*
 * malloc and its kin, sampled by bytes: each thread counts down a number of bytes drawn from an exponential distribution
 * (a Poisson process, one sample in 512 KiB on average). An allocation of s bytes is sampled with the probability
 * 1 - exp(-s / 512 KiB), and then stands for s / that many bytes, so that the sums are right on average. A free looks
 * up its address among those sampled.
 */

#define DRAWS 1024
#define WEIGHTS 256
#define WEIGHT_SHIFT 14       /* 512 KiB / 32: the table ends at 4 MiB, where all are sampled */

struct thread {
	s64 left;             /* bytes until the next sample */
	u64 sp;               /* of the call that is under way; 0: none */
	u64 size;             /* of it, if it is sampled, else 0 */
	u64 out;              /* posix_memalign: where the address will be stored */
	struct site_key site;
};
struct live_key {
	u64 address;
	u32 tgid;
	u32 life;
};
struct live {
	struct site_key site;
	u64 weight;
};

BPF_TABLE("lru_hash", u32, struct thread, threads, 16384);
BPF_F_TABLE("hash", struct live_key, struct live, allocations, 262144, BPF_F_NO_PREALLOC);
/* the exponential distribution, in bytes, in parts that are equally likely; and what a sampled size stands for beyond
 * itself */
struct part {
	u64 from;
	u64 width;
};
BPF_ARRAY(draws, struct part, DRAWS);
BPF_ARRAY(weights, u64, WEIGHTS);

static __always_inline s64 draw(void)
{
	u32 random = bpf_get_prandom_u32(), index = random % DRAWS;
	struct part *part = draws.lookup(&index);

	return part ? part->from + (part->width * (random >> 16) >> 16) : 1 << 19;
}

static __always_inline u64 weight_of(u64 size)
{
	u32 index = size >> WEIGHT_SHIFT < WEIGHTS ? size >> WEIGHT_SHIFT : WEIGHTS;
	u64 *more = weights.lookup(&index);

	return more ? size + *more : size;
}

static __always_inline void forget(u64 address, u32 tgid, u32 life)
{
	struct live_key key = { .address = address, .tgid = tgid, .life = life };
	struct live *live = allocations.lookup(&key);

	if (!live)
		return;
	add_freed(&live->site, live->weight);
	allocations.delete(&key);
}

static __always_inline int begin(struct pt_regs *ctx, u64 size, u64 out)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();
	u32 tid = pid_tgid, tgid = pid_tgid >> 32, life = life_of(tgid);
	struct thread *thread;
	u64 sp = ctx->sp;

	count(ENTRIES);
	if (!life)
		return 0;
	thread = threads.lookup(&tid);
	if (!thread) {
		struct thread first = { .left = draw() };

		threads.update(&tid, &first);
		thread = threads.lookup(&tid);
		if (!thread) {
			count(LOST_THREAD);
			return 0;
		}
	}
	/* calloc of musl calls malloc: one allocation, not two. A call that was left by a longjmp is higher up. */
	if (thread->sp && sp < thread->sp)
		return 0;
	thread->sp = sp;
	thread->size = 0;
	thread->left -= size;
	if (thread->left > 0)
		return 0;
	thread->left = draw();
	thread->size = size;
	thread->out = out;
	thread->site.tgid = tgid;
	thread->site.life = life;
	thread->site.kind = SITE_MALLOC;
	/* here, not at the return: the return address is the kernel's own by then */
	thread->site.stack_id = stacks.get_stackid(ctx, BPF_F_USER_STACK);
	thread->site.caller = RETURN_REGISTER(ctx);
	if (!thread->site.caller)
		thread->site.caller = caller_at(sp);
	return 0;
}

/* malloc(size), valloc(size), pvalloc(size) */
int on_malloc(struct pt_regs *ctx)
{
	return begin(ctx, FUNCTION_ARG1(ctx), 0);
}

/* calloc(count, size) */
int on_calloc(struct pt_regs *ctx)
{
	return begin(ctx, FUNCTION_ARG1(ctx) * FUNCTION_ARG2(ctx), 0);
}

/* realloc(address, size): the old allocation ends, another begins. One that fails, which is rare, looks like a free. */
int on_realloc(struct pt_regs *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32, life = life_of(tgid);

	if (life && FUNCTION_ARG1(ctx))
		forget(FUNCTION_ARG1(ctx), tgid, life);
	return FUNCTION_ARG2(ctx) ? begin(ctx, FUNCTION_ARG2(ctx), 0) : 0;
}

/* memalign(alignment, size), aligned_alloc(alignment, size) */
int on_memalign(struct pt_regs *ctx)
{
	return begin(ctx, FUNCTION_ARG2(ctx), 0);
}

/* posix_memalign(out, alignment, size) */
int on_posix_memalign(struct pt_regs *ctx)
{
	return begin(ctx, FUNCTION_ARG3(ctx), FUNCTION_ARG1(ctx));
}

/* the return of all of them */
int on_alloc_return(struct pt_regs *ctx)
{
	u64 pid_tgid = bpf_get_current_pid_tgid();
	u32 tid = pid_tgid;
	struct thread *thread = threads.lookup(&tid);
	u64 address = FUNCTION_RESULT(ctx), sp;
	struct live live = {};
	struct live_key key = {};

	count(RETURNS);
	if (!thread || ctx->sp != thread->sp + RETURN_ADDRESS_BYTES)
		return 0;
	sp = thread->sp;
	thread->sp = 0;
	if (!thread->size)
		return 0;
	if (thread->out) {
		u64 out = 0;

		if (!address)   /* posix_memalign returns an errno */
			read_user(&out, sizeof(out), (void *)thread->out);
		address = out;
	}
	if (!address)
		return 0;
	live.site = thread->site;
	live.weight = weight_of(thread->size);
	key.address = address;
	key.tgid = live.site.tgid;
	key.life = live.site.life;
	if (allocations.update(&key, &live)) {
		count(LOST_ALLOCATION);
		return 0;
	}
	add_allocated(&live.site, live.weight, sp);
	return 0;
}

/* free(address), cfree(address) */
int on_free(struct pt_regs *ctx)
{
	u32 tgid = bpf_get_current_pid_tgid() >> 32, life = life_of(tgid);

	count(ENTRIES);
	if (life && FUNCTION_ARG1(ctx))
		forget(FUNCTION_ARG1(ctx), tgid, life);
	return 0;
}
