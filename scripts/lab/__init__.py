"""The kernel lab: the kernel tests on other kernels, in a virtual machine on top of this host's file system."""
