package stack

import (
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/machine/image"
)

// The defaults in the configuration are those of package image.
func TestImageDefaults(t *testing.T) {
	b, err := loadBuilder(t, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := config.Image{Pull: string(atoll.PullMissing), Timeout: atoll.Duration(image.DefaultTimeout), Limit: image.DefaultLimit}
	if got := b.Image; got.Pull != want.Pull || got.Timeout != want.Timeout || got.Limit != want.Limit || got.Insecure != nil {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// The settings reach the image store.
func TestImageOptions(t *testing.T) {
	cfg := config.Image{Insecure: []string{"a"}, Pull: "never", Timeout: atoll.Duration(time.Minute), Limit: 5}
	got := imageOptions(cfg)
	if len(got.Insecure) != 1 || got.Insecure[0] != "a" || got.Pull != atoll.PullNever || got.Timeout != time.Minute || got.Limit != 5 {
		t.Errorf("got %+v from %+v", got, cfg)
	}
}
