// Package bundle builds, pulls and stores the files that virtual machines boot.
//
// A bundle is a directory with a manifest, a kernel, an initrd and read-only root disks,
// from which any hypervisor boots; or, for hypervisors that bring a kernel, such as WSL,
// with a manifest and an archive of a root file system. Its name is the digest of the
// manifest, which has the digests of the files, and it never changes. A [Store] is a
// directory of bundles that processes share.
//
// A bundle is built on Linux from a [Recipe]: the kernel of a Debian package, an
// initrd with a guest's program and the modules that it needs, and a root file system
// from an OCI image or from Debian packages. Builds share their parts: all use one
// kernel, and all bundles of an image use one disk. On other systems, and without the
// tools, pull a bundle from a directory or over HTTP.
//
//	store, err := bundle.Open(dir, bundle.Options{Guest: program})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	b, err := store.Build(ctx, bundle.Recipe{Packages: []string{"python3"}}, nil)
//	if err != nil {
//		return err
//	}
//	hw.Kernel, hw.Initrd = b.Path(b.Kernel.File), b.Path(b.Initrd.File)
//	hw.Disks = []vm.Disk{{ID: bundle.RootDisk, Path: b.Path(b.Root().File), ReadOnly: true}}
//
// The guest is the first process, /init of the initrd. It loads the modules that
// [vm.ModuleList] names, in that order, finds disks by their ids, and formats empty ones
// with /sbin/mke2fs. A bundle for Docker Engines has a [vm.Init] in its manifest, and in
// [vm.InitFile] on the root disk, which says what the machine does then.
//
// In an archive the guest is the program at [GuestPath].
package bundle
