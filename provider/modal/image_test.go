//go:build linux

package modal_test

import (
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/modal"
)

// If building an image takes too long, the error says so and what to do.
func TestImageTakesTooLong(t *testing.T) {
	p := provider(t, func(o *modal.Options) {
		o.Commands = []string{"ENV RUN=" + o.Prefix} // an image to build
		o.Patience = time.Second
	})
	end := make(chan struct{})
	defer theLab.server.Intercept(nil)
	defer close(end)
	theLab.server.Intercept(func(method string) error {
		if method == "ImageGetOrCreate" {
			<-end
		}
		return nil
	})
	_, err := p.Create(t.Context(), &atoll.Spec{})
	if want := "was not built within 1s: raise modal.patience"; atoll.KindOf(err) != atoll.ErrUnavailable || !strings.Contains(err.Error(), want) {
		t.Errorf("Create: %v (%s), want %q", err, atoll.KindOf(err), want)
	}
}
