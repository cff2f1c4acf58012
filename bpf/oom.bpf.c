/* SPDX-License-Identifier: GPL-2.0-or-later */
/* OOM kills: the victim and every cgroup from it up to the root, read while the victim still has its memory. */

#define UNKNOWN_CONSTRAINT 0xffff
#define MEMCG_EVENT_MAX 2     /* MEMCG_MAX of enum memcg_memory_event, include/linux/memcontrol.h */
#define CONSTRAINT_MEMCG 3   /* enum oom_constraint, include/linux/oom.h */

/* By thread: what out_of_memory() was called with. It lies on the stack of the thread, which stays in that function
 * while it kills; so the entry is that of the kill, and an older one is overwritten before the next. */
BPF_TABLE("lru_hash", u32, struct oom_control *, oom_controls, 1024);

static __always_inline void remember_oom_control(struct oom_control *oc)
{
	u32 tid = bpf_get_current_pid_tgid();

	oom_controls.update(&tid, &oc);
}

/* fentry: out_of_memory(oc) */
int on_out_of_memory(u64 *ctx)
{
	remember_oom_control((struct oom_control *)ctx[0]);
	return 0;
}

/* kprobe: out_of_memory(oc) */
int on_out_of_memory_kprobe(struct pt_regs *regs)
{
	remember_oom_control((struct oom_control *)PT_REGS_PARM1(regs));
	return 0;
}

static __always_inline u64 css_memcg_id(struct cgroup_subsys_state *css)
{
	struct cgroup *cgroup = KREAD(css, cgroup);
	struct kernfs_node *node = KREAD(cgroup, kn);

	return KREAD(node, id);
}

/* What was short. Without the probe on out_of_memory() nothing is known of it here. */
static __always_inline void fill_shortage(struct oom_event *e)
{
	u32 tid = bpf_get_current_pid_tgid();
	struct oom_control **found = oom_controls.lookup(&tid);
	struct mem_cgroup *memcg;
	struct oom_control *oc;

	e->constraint = UNKNOWN_CONSTRAINT;
	e->order = -1;
	if (!found)
		return;
	oc = *found;
	memcg = KREAD(oc, memcg);
	/* these two are const: a variable of their type could not be read into */
	bpf_probe_read_kernel(&e->order, sizeof(e->order), &oc->order);
	bpf_probe_read_kernel(&e->gfp_mask, sizeof(e->gfp_mask), &oc->gfp_mask);
	if (memcg) {
		e->constraint = CONSTRAINT_MEMCG;
		e->oom_memcg_id = css_memcg_id(&memcg->css);
	} else if (KREAD(oc, totalpages)) {
		/* constrained_alloc() has set both */
		e->constraint = KREAD(oc, constraint);
	}
}

/* How often a limit was hit, as the user can look it up: memory.failcnt, or `max` of memory.events.local. (v2 has the
 * page counter too, but it also counts tries that then succeeded with a smaller batch.) */
static __always_inline u64 times_at_limit(struct mem_cgroup *memcg, bool v2)
{
	return v2 ? KREAD(memcg, memory_events_local[MEMCG_EVENT_MAX].counter) : KREAD(memcg, memory.failcnt);
}

static __always_inline void fill_levels(struct oom_event *e, struct task_struct *victim, bool v2)
{
	bool in_domain = true;
	struct css_set *set = KREAD(victim, cgroups);
	struct cgroup_subsys_state *css = KREAD(set, subsys[memory_cgrp_id]);

	e->memcg_id = css_memcg_id(css);
#pragma unroll
	for (int i = 0; i < MEMCG_LEVELS; i++) {
		struct mem_cgroup *memcg = CONTAINER_OF(css, struct mem_cgroup, css);
		struct memcg_level *level = &e->memcg[i];

		level->memcg_id = level->usage_pages = level->limit_pages = level->failcnt = 0;
		if (!css)
			continue;
		level->memcg_id = css_memcg_id(css);
		level->usage_pages = KREAD(memcg, memory.usage.counter);
		level->limit_pages = KREAD(memcg, memory.max);
		level->failcnt = times_at_limit(memcg, v2);
		/* mem_cgroup_get_oom_group() looks no further up than where the limit was hit */
		if (in_domain)
			e->oom_group |= KREAD(memcg, oom_group);
		in_domain = in_domain && level->memcg_id != e->oom_memcg_id;
		e->levels = i + 1;
		css = KREAD(css, parent);
	}
}

/* mark_victim(task, uid); before commit 72ba14deb40a ("mm: update mark_victim tracepoints fields"), in v6.9,
 * mark_victim(pid) */
int on_mark_victim(u64 *ctx)
{
	struct task_struct *current_task = (struct task_struct *)bpf_get_current_task();
	struct config *cfg = get_config();
	struct task_struct *victim;
	struct signal_struct *signal;
	const struct cred *cred;
	struct mm_struct *mm;
	struct oom_event *e;

	if (!cfg || !wants(cfg, EVENT_OOM_KILL))
		return 0;
#ifdef HAS_TASK_ARG_mark_victim
	victim = (struct task_struct *)ctx[0];
#else
	victim = task_of_pid(ctx[0]);
#endif
	if (!cfg->all && victim && !traced_state(KREAD(victim, tgid))) {
		u64 memcg_id = memcg_id_of(victim);

		if (!target_cgroups.lookup(&memcg_id))
			return 0;
	}
	e = reserve_event(EVENT_OOM_KILL);
	if (!e)
		return 0;
	__builtin_memset(e, 0, __builtin_offsetof(struct oom_event, memcg));
	fill_shortage(e);
	if (victim) {
		fill_header_of(&e->header, EVENT_OOM_KILL, victim);
		if (!is_comm(cfg, e->header.comm)) {
			events.ringbuf_discard(e, BPF_RB_NO_WAKEUP);
			return 0;
		}
		mm = KREAD(victim, mm);
		signal = KREAD(victim, signal);
		cred = KREAD(victim, real_cred);
		e->total_vm_pages = KREAD(mm, total_vm);
		e->uid = KREAD(cred, uid.val);
		e->anon_pages = rss_pages(mm, COUNTER_ANON);
		e->file_pages = rss_pages(mm, COUNTER_FILE);
		e->shmem_pages = rss_pages(mm, COUNTER_SHMEM);
		e->swap_pages = rss_pages(mm, COUNTER_SWAP);
		e->page_table_bytes = KREAD(mm, pgtables_bytes.counter);
		e->oom_score_adj = KREAD(signal, oom_score_adj);
		fill_levels(e, victim, cfg->memory_hierarchy_id == V2_HIERARCHY_ID);
	} else {
		fill_header(&e->header, EVENT_OOM_KILL);
		e->header.pid = e->header.tid = (u32)ctx[0];
		e->header.ns_pid = 0;
		e->header.comm[0] = 0;
	}
	e->trigger_pid = KREAD(current_task, tgid);
	e->trigger_tid = KREAD(current_task, pid);
	bpf_get_current_comm(e->trigger_comm, sizeof(e->trigger_comm));
	/* the container may be gone in a millisecond: wake the reader now */
	events.ringbuf_submit(e, BPF_RB_FORCE_WAKEUP);
	return 0;
}
