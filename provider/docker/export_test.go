package docker

import (
	"context"
	"time"
)

// RemoveInstallers removes the containers of installations that were interrupted before that
// time.
func RemoveInstallers(ctx context.Context, p *Provider, before time.Time) error {
	return p.removeInstallers(ctx, before)
}

// InstallerLabels returns the labels of such containers.
func InstallerLabels(p *Provider) map[string]string { return p.names.installerLabels() }

// OnStep lets step run before each step of a creation.
func OnStep(opts *Options, step func(name string) error) { opts.step = step }

// GuestPath is the path of the guest's program in a container.
const GuestPath = guestPath
