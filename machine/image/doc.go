// Package image turns OCI images into root file systems.
//
// A [Store] is a directory that processes share: it holds what was fetched and,
// for each image, one unpacked directory that is named by the digest of its
// content, never changed, and used by all sandboxes made from it. A provider
// puts its own writable layer above it.
//
// An image is named as docker names it, or by where it lies on this machine:
//
//	python:3.11-slim                   in a registry, docker.io when none is named
//	ghcr.io/org/app@sha256:...         in a registry, exactly this content
//	atoll-local/base:1                 in the store only, given its name by Store.Tag
//	sha256:...                         in the store only, by its digest
//	oci:/path[:tag]                    an OCI image layout
//	docker-archive:/path.tar[:ref]     what docker save wrote
//	dir:/path                          a directory, used where it is
//	/path                              whichever of the three above it turns out to be
//
// Images are hostile input, and so are registries: whoever one sends us to is
// asked over TLS only, and never on this machine. Every layer is checked against
// its digest before its content is used, and nothing it holds is written outside
// the directory being unpacked, whatever names and links it contains. The
// directory of a store is closed to other users, since what is unpacked keeps
// setuid bits.
//
//	store, err := image.Open(dir, image.Options{})
//	if err != nil {
//		return err
//	}
//	defer store.Close()
//	img, err := store.Get(ctx, "python:3.11-slim", nil)
//	if err != nil {
//		return err
//	}
//	hold, err := img.Hold() // until it is closed, the directory stays
package image
