package testimage

import (
	"bytes"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// Archive returns an image under a name in the format of docker save and docker load.
func Archive(ref string, img v1.Image) ([]byte, error) {
	tag, err := name.NewTag(ref)
	if err != nil {
		return nil, err
	}
	var packed bytes.Buffer
	err = tarball.Write(tag, img, &packed)
	return packed.Bytes(), err
}
