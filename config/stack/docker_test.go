package stack

import (
	"testing"

	"github.com/seed46cd37a8/atoll/provider/docker"
)

// The default image in the configuration is that of package docker.
func TestDockerDefaults(t *testing.T) {
	b, err := loadBuilder(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.Docker.Image != docker.DefaultImage {
		t.Errorf("got %q, want %q", b.Docker.Image, docker.DefaultImage)
	}
}
