package docker

import (
	"context"
	"time"
)

// Installers removes what was left, before then, of installations of the guest.
func Installers(ctx context.Context, p *Provider, before time.Time) error {
	return p.removeInstallers(ctx, before)
}

// InstallLabels are the labels of what is left then.
func InstallLabels(p *Provider) map[string]string { return p.names.installerLabels() }

// OnStep has step asked before each step of a creation.
func OnStep(opts *Options, step func(name string) error) { opts.step = step }

// GuestPath is where the guest's program is in a container.
const GuestPath = guestPath
