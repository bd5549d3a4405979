// Package sandboxnet has what the networks of sandboxes with supervisors have in common: their policies, their secrets, and the
// certificate authority of their gateways.
package sandboxnet

import (
	"cmp"
	"fmt"
	"io"
	"slices"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/gateway"
	"github.com/seed46cd37a8/atoll/internal/trust"
	"github.com/seed46cd37a8/atoll/internal/usernet"
	"github.com/seed46cd37a8/atoll/provider/internal/supervised/supervisor"
)

// New returns the network of a sandbox, which serves the link as usernet.New does.
func New(s *supervisor.Sandbox, opts usernet.Options, link io.ReadWriteCloser) (*usernet.Network, error) {
	n, err := usernet.New(link, opts)
	if err != nil {
		return nil, err
	}
	s.SetNetworkUpdater(func(nw atoll.Network) error {
		policy, err := usernet.NewPolicy(nw, s.Job.Spec.Secrets...)
		if err != nil {
			return err
		}
		return n.SetPolicy(policy)
	})
	return n, nil
}

// Options returns the options of the network of a sandbox.
func Options(s *supervisor.Sandbox) (opts usernet.Options, err error) {
	spec := &s.Job.Spec
	opts = usernet.Options{
		Report: s.NoteNetwork, Log: s.Log,
		Value: newValueReader(s).readValue,
		Advise: func(entry string) string {
			return fmt.Sprintf("Ask your user to run: %s", atoll.AllowCommand(cmp.Or(s.Job.Spec.Name, s.Job.Spec.ID), entry))
		},
	}
	if opts.Policy, err = usernet.NewPolicy(spec.Network, spec.Secrets...); err != nil {
		return opts, err
	}
	opts.Authority, err = openAuthority(s.Job, opts.Policy)
	return opts, err
}

// openAuthority returns the authority of the gateway, nil if the policy needs none.
func openAuthority(job *supervisor.Job, policy *usernet.Policy) (*gateway.Authority, error) {
	if !policy.NeedsAuthority() {
		return nil, nil
	}
	return gateway.OpenAuthority(job.State)
}

// Certificate returns the certificate, in PEM, that programs in the sandbox have to trust; nil for none.
func Certificate(job *supervisor.Job) ([]byte, error) {
	if job.Spec.Network.Mode == atoll.NetworkNone {
		return nil, nil
	}
	policy, err := usernet.NewPolicy(job.Spec.Network, job.Spec.Secrets...)
	if err != nil {
		return nil, err
	}
	authority, err := openAuthority(job, policy)
	if authority == nil {
		return nil, err
	}
	return authority.Certificate(), err
}

// InstallTrust makes the programs of a sandbox trust the authority, which may be nil, and returns the variables that they need for that.
func InstallTrust(s *supervisor.Sandbox, authority *gateway.Authority, files trust.Files) (vars []string, err error) {
	if authority == nil {
		return nil, nil
	}
	env := slices.Concat(s.Job.Record.Env, s.Job.Spec.Environ())
	vars, warnings, err := trust.Install(files, authority.Certificate(), env)
	for _, text := range warnings {
		s.Log.Warn("trust", "warning", text)
	}
	return vars, err
}
