//go:build linux

package docker_test

import (
	"path/filepath"
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/docker"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// The sessions group of the suite passes with containers. The guest stops idle sandboxes;
// without a guest, the session layer does.
func TestSessions(t *testing.T) {
	for name, change := range map[string]func(*docker.Options){"guest": nil, "plain": withoutGuest} {
		t.Run(name, func(t *testing.T) {
			needEngine(t)
			files := map[*session.Provider]string{}
			around := func(p atoll.Provider, file string) atoll.Provider {
				s := session.New(p, sqlite.New(file), session.Options{})
				files[s] = file
				return s
			}
			providertest.Run(t, func(t *testing.T) atoll.Provider {
				if change == nil {
					return around(open(t), filepath.Join(t.TempDir(), "atoll.db"))
				}
				return around(open(t, change), filepath.Join(t.TempDir(), "atoll.db"))
			}, providertest.Only("sessions"), providertest.Slow(3), providertest.Leaks(heldObjects),
				providertest.Reopen(func(t *testing.T, p atoll.Provider) atoll.Provider {
					s := p.(*session.Provider)
					return around(reopen(t, s.ProviderLayer.Provider), files[s])
				}))
		})
	}
}
