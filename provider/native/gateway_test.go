//go:build linux

package native_test

import (
	"testing"

	_ "github.com/seed46cd37a8/atoll/internal/secretstore" // this program reads them
	"github.com/seed46cd37a8/atoll/internal/testing/testworld"
	"github.com/seed46cd37a8/atoll/provider/native"
	"github.com/seed46cd37a8/atoll/provider/providertest"
)

func TestGateway(t *testing.T) {
	needNative(t)
	if world := testworld.Enter(t); world != nil {
		p := openProvider(t).(*native.Provider)
		defer p.Close()
		providertest.CheckGateway(t, p, world, optionsOf(p).Dir)
	}
}
