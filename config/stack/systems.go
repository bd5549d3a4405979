package stack

import (
	"runtime"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
)

// openers are the functions that open the built-in providers, by name.
var openers = map[string]func(b *Builder, opts Options) (atoll.Provider, error){
	"gvisor": openGVisor, "docker": openDocker, "native": openNative, "microvm": openMicroVM, "vmdocker": openVMDocker, "local": openLocal, "mock": openMock,
}

// OpenProvider returns the provider of e with its settings in b. It touches nothing but the state directory. Kinds:
// ErrUnavailable (this operating system does not have the provider).
func (b *Builder) OpenProvider(e config.Entry, opts Options) (atoll.Provider, error) {
	if p := e.On(runtime.GOOS); !p.OK {
		return nil, atoll.Errorf("open", e.Name, atoll.ErrUnavailable, "%s: %s", p.Reason, p.Fix)
	}
	if open := openers[e.Name]; open != nil {
		return open(b, opts)
	}
	return b.openPlugin(e, opts)
}
