package local_test

import (
	"testing"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/providertest"
)

func open(t *testing.T) atoll.Provider {
	t.Helper()
	p, err := local.New(local.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestConformance(t *testing.T) { providertest.Run(t, open) }

func BenchmarkProvider(b *testing.B) {
	providertest.Bench(b, func(b *testing.B) atoll.Provider {
		p, err := local.New(local.Options{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		return p
	})
}
