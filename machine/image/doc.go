// Package image turns OCI images into root file systems.
//
// A [Store] is a directory that processes share: it holds what was fetched and,
// for each image, one unpacked directory that is named by the digest of its
// content, never changed, and used by all sandboxes made from it. A provider
// puts its own writable layer above it.
//
// An image has a name as in docker, or the path of its files on this machine:
//
//	python:3.11-slim                   in a registry, docker.io when none is named
//	ghcr.io/org/app@sha256:...         in a registry, exactly this content
//	atoll-local/base:1                 in the store only, given its name by Store.Tag
//	sha256:...                         in the store only, by its digest
//	oci:/path[:tag]                    an OCI image layout
//	docker-archive:/path.tar[:ref]     a file that docker save wrote
//	dir:/path                          a directory, used where it is
//	/path                              one of the three above, detected
//
// Images are hostile input, and so are registries: the store follows a registry to
// other hosts over TLS only, and never to this machine. It checks every layer against
// its digest before it uses the content, and writes nothing outside the directory
// that it unpacks into, whatever names and links the layer contains. The directory of
// a store is closed to other users, since unpacked files keep setuid bits.
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
//	hold, err := img.Hold() // the directory stays until hold is closed
package image
