package modal

import (
	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/internal/remote"
)

// A sandbox is the handle of a sandbox.
type sandbox struct {
	*remote.Sandbox[*revision]
	p *Provider
}

var (
	_ atoll.Sandbox       = (*sandbox)(nil)
	_ atoll.Dialer        = (*sandbox)(nil)
	_ atoll.Extender      = (*sandbox)(nil)
	_ atoll.Filer         = (*sandbox)(nil)
	_ atoll.ProcessLister = (*sandbox)(nil)
)
