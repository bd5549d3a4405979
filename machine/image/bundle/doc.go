// Package bundle makes and keeps what virtual machines boot.
//
// A bundle is a directory with a kernel, an initrd, read-only root disks and a
// manifest of them, from which any hypervisor boots; or, for those that bring a kernel,
// as WSL does, with an archive of a root file system and the manifest. It is named by the digest of the
// manifest, which has those of the files, and is never changed. A [Store] is a
// directory of bundles that processes share.
//
// A bundle is built on Linux from a [Recipe]: the kernel of a Debian package, an
// initrd with a guest's program and the modules that it needs, and a root file system
// from an OCI image or from Debian packages. What was built once is used again: the
// kernel for all, the disk of an image by the image's digest. Elsewhere, and where the
// tools are missing, a bundle is pulled, from a directory or over HTTP.
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
// [vm.ModuleList] names, in that order, and finds disks by their ids; /sbin/mke2fs is there
// to format those that are empty. What the machine is to do then, as a bundle for
// Docker Engines says, is the [vm.Init] of its manifest, and [vm.InitFile] on the root disk.
//
// In an archive the guest is the program at [GuestPath].
package bundle
