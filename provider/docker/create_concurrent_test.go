//go:build linux

package docker_test

import (
	"sync/atomic"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/docker"
)

// The creation of a sandbox without a name does not wait for that of another one.
func TestCreationsDoNotWait(t *testing.T) {
	var first atomic.Bool
	begun, release := make(chan struct{}), make(chan struct{})
	p := open(t, func(o *docker.Options) {
		docker.OnStep(o, func(string) error {
			if first.CompareAndSwap(false, true) {
				close(begun)
				<-release
			}
			return nil
		})
	})
	defer p.Close()
	done := make(chan error)
	go func() {
		sb, err := p.Create(t.Context(), &atoll.Spec{NoStart: true})
		if err == nil {
			err = sb.Remove(t.Context(), atoll.RemoveVolumes())
		}
		done <- err
	}()
	<-begun
	sb, err := p.Create(t.Context(), &atoll.Spec{NoStart: true})
	close(release)
	if err != nil {
		t.Error("a creation waits for another one:", err)
	} else if err := sb.Remove(t.Context(), atoll.RemoveVolumes()); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}
