//go:build linux

package gvisor_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/layer/session"
	"github.com/seed46cd37a8/atoll/provider/providertest"
	"github.com/seed46cd37a8/atoll/storage/store/sqlite"
)

// Sessions keep their promises with sandboxes that outlive all programs, and that
// supervisors stop when they are idle.
func TestSessions(t *testing.T) {
	needGVisor(t)
	files := map[*session.Provider]string{}
	around := func(p atoll.Provider, file string) atoll.Provider {
		s := session.New(p, sqlite.New(file), session.Options{})
		files[s] = file
		return s
	}
	opts := append(suiteOptions(), providertest.Only("sessions"), providertest.Reopen(func(t *testing.T, p atoll.Provider) atoll.Provider {
		s := p.(*session.Provider)
		return around(reopen(t, s.ProviderLayer.Provider), files[s])
	}))
	providertest.Run(t, func(t *testing.T) atoll.Provider { return around(openProvider(t), t.TempDir()+"/atoll.db") }, opts...)
}
