package fakemodal

import (
	"context"
	"io"
	"log"
	"net/http"
	"runtime"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	oci "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// A registry stores the built images, for the backend to pull.
type registry struct {
	*webServer
	transport *http.Transport
}

func newRegistry(dir string) (*registry, error) {
	h := oci.New(oci.Logger(log.New(io.Discard, "", 0)), oci.WithBlobHandler(oci.NewDiskBlobHandler(dir)))
	w, err := serveHTTP(h)
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DisableKeepAlives = true // no connection remains open, not even to another registry
	return &registry{w, transport}, nil
}

// imageRef returns the reference of an image of this registry.
func (r *registry) imageRef(id string) string { return r.address + "/image:" + id }

// pushImage stores an image.
func (r *registry) pushImage(ctx context.Context, id string, img v1.Image) error {
	ref, err := name.ParseReference(r.imageRef(id))
	if err != nil {
		return err
	}
	return remote.Write(ref, img, remote.WithContext(ctx), remote.WithTransport(r.transport))
}

// pullImage returns an image of any registry. It reads the layers later, on demand.
func (r *registry) pullImage(ctx context.Context, reference string, auth authn.Authenticator) (v1.Image, error) {
	ref, err := name.ParseReference(reference)
	if err != nil {
		return nil, err
	}
	return remote.Image(ref, remote.WithContext(ctx), remote.WithTransport(r.transport), remote.WithAuth(auth),
		remote.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}))
}
