/* SPDX-License-Identifier: GPL-2.0-or-later */
/* From a descriptor to the file, its tmpfs and its name. */
#ifndef RTDEBUG_FILE_H
#define RTDEBUG_FILE_H

#ifndef S_IFMT
#define S_IFMT 00170000
#define S_IFREG 0100000
#endif

static __always_inline struct file *file_of(s32 fd)
{
	struct task_struct *task = (struct task_struct *)bpf_get_current_task();
	struct files_struct *files = KREAD(task, files);
	struct fdtable *table = KREAD(files, fdt);
	struct file **slots = KREAD(table, fd);
	struct file *file = NULL;

	if (fd >= 0 && (u32)fd < KREAD(table, max_fds))
		bpf_probe_read_kernel(&file, sizeof(file), &slots[fd]);
	return file;
}

static __always_inline struct super_block *super_block_of(struct inode *inode)
{
	return KREAD(inode, i_sb);
}

static __always_inline bool is_tmpfs(struct super_block *sb)
{
	return KREAD(sb, s_magic) == TMPFS_MAGIC;
}

/* s_dev as user space sees it in /proc/PID/mountinfo: major << 20 | minor */
static __always_inline u32 device_of(struct super_block *sb)
{
	return KREAD(sb, s_dev);
}

static __always_inline bool is_root(struct dentry *dentry)
{
	return dentry == KREAD(dentry, d_parent);
}

/* Mounts on top of one another at the same place, of which the last one counts (`mount -t tmpfs tmpfs /dev/shm`). */
#define STACKED_MOUNTS 4

/* A tmpfs whose mount point is called "shm": /dev/shm of a container, of a pod (emptyDir) or of the host. */
static __always_inline bool is_shm_path(const struct path *path)
{
	struct mount *mount = CONTAINER_OF(KREAD(path, mnt), struct mount, mnt);
	struct dentry *mountpoint = KREAD(mount, mnt_mountpoint);
	struct dentry *dentry = KREAD(path, dentry);
	struct super_block *sb = KREAD(dentry, d_sb);
	char shm[4] = {};

	if (!is_tmpfs(sb))
		return false;
#pragma unroll
	for (int i = 1; i < STACKED_MOUNTS; i++) {
		if (is_root(mountpoint)) {   /* mounted on another mount's root */
			mount = KREAD(mount, mnt_parent);
			mountpoint = KREAD(mount, mnt_mountpoint);
		}
	}
	bpf_probe_read_kernel_str(shm, sizeof(shm), KREAD(mountpoint, d_name.name));
	return shm[0] == 's' && shm[1] == 'h' && shm[2] == 'm' && !shm[3];
}

/* Not the directory itself, nor a fifo or socket in it. */
static __always_inline bool is_regular(struct file *file)
{
	struct inode *inode = KREAD(file, f_inode);

	return (KREAD(inode, i_mode) & S_IFMT) == S_IFREG;
}

/* Not what only lies in one: devtmpfs is a tmpfs, and /dev/full in it a device. */
static __always_inline bool is_tmpfs_file(struct file *file)
{
	return is_regular(file) && is_tmpfs(super_block_of(KREAD(file, f_inode)));
}

static __always_inline bool is_memfd(struct file *file)
{
	struct dentry *dentry = KREAD(file, f_path.dentry);
	const unsigned char *name = KREAD(dentry, d_name.name);
	char prefix[8] = {};

	bpf_probe_read_kernel_str(prefix, 7, name);
	return prefix[0] == 'm' && prefix[1] == 'e' && prefix[2] == 'm' && prefix[3] == 'f' && prefix[4] == 'd' &&
	       prefix[5] == ':';
}

/* The name of a dentry; "" for the root of its file system. */
static __always_inline void read_name(char *name, u32 size, struct dentry *dentry)
{
	struct dentry *parent = KREAD(dentry, d_parent);

	name[0] = 0;
	if (dentry && dentry != parent)
		bpf_probe_read_kernel_str(name, size, KREAD(dentry, d_name.name));
}

/* The name of a memfd, without its "memfd:": its dentry has no parent. */
static __always_inline void read_memfd_name(char *name, u32 size, struct dentry *dentry)
{
	const unsigned char *text = KREAD(dentry, d_name.name);

	bpf_probe_read_kernel_str(name, size, text + 6);
}

#endif
