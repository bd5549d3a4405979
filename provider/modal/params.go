package modal

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/machine/guest"
)

// createParams returns the parameters with which Modal creates an instance.
func (p *Provider) createParams(ctx context.Context, spec *atoll.Spec, name string) (*sdk.SandboxCreateParams, error) {
	volumes, err := p.volumeMounts(ctx, spec)
	if err != nil {
		return nil, err
	}
	buckets, err := p.bucketMounts(ctx)
	if err != nil {
		return nil, err
	}
	secrets, err := p.findSecrets(ctx, p.opts.Secrets)
	if err != nil {
		return nil, err
	}
	config, err := p.guestConfig(spec)
	if err != nil {
		return nil, err
	}
	params := &sdk.SandboxCreateParams{
		Name: name, Command: []string{guestPath, "init", guest.ConfigVar}, Workdir: "/",
		Env: map[string]string{guest.ConfigVar: config}, Secrets: secrets, // Modal shows a command to users, but not secrets and variables
		Timeout: p.opts.maxLifetime,
		Volumes: volumes, CloudBucketMounts: buckets, Cloud: p.opts.Cloud, Regions: p.opts.Regions,
	}
	if err := p.setNetwork(spec, params); err != nil {
		return nil, err
	}
	return params, p.setLimits(spec, params)
}

// guestConfig returns the configuration of a sandbox's guest as JSON.
func (p *Provider) guestConfig(spec *atoll.Spec) (string, error) {
	g := guest.Config{
		ID: spec.ID, Self: guestPath, Workdir: spec.Workdir, User: spec.User, Env: spec.Environ(),
		Cmd: spec.Cmd, TTY: spec.TTY, OpenStdin: spec.OpenStdin, Held: spec.AutoRemove,
		IdleStop: max(cmp.Or(spec.IdleStop, atoll.DefaultIdleStop), 0), Framed: true, Lines: true, Silence: atoll.Duration(p.opts.silenceTimeout),
		Home: slices.ContainsFunc(spec.Environ(), func(kv string) bool { return strings.HasPrefix(kv, "HOME=") }),
	}
	text, err := json.Marshal(g)
	return string(text), err
}

// setNetwork sets what a sandbox may reach, and its tunnels.
func (p *Provider) setNetwork(spec *atoll.Spec, params *sdk.SandboxCreateParams) (err error) {
	switch spec.Network.Mode {
	case atoll.NetworkOn:
	case atoll.NetworkEgress:
		if params.CIDRAllowlist, err = allowedNetworks(spec); len(params.CIDRAllowlist) == 0 {
			params.BlockNetwork = true
		}
	default:
		params.BlockNetwork = true
	}
	for _, port := range spec.Ports {
		switch {
		case !port.Publish || p.opts.Tunnels == TunnelsOff: // the settings may have changed since the sandbox was created
		case p.opts.Tunnels == TunnelsTLS:
			params.EncryptedPorts = append(params.EncryptedPorts, port.Port)
		default:
			params.UnencryptedPorts = append(params.UnencryptedPorts, port.Port)
		}
	}
	return err
}

// setLimits sets the limits of a sandbox, by which Modal also bills.
func (p *Provider) setLimits(spec *atoll.Spec, params *sdk.SandboxCreateParams) error {
	r := spec.Resources.WithDefaults()
	if r.Memory > 0 {
		params.MemoryMiB = int((int64(r.Memory) + 1<<20 - 1) >> 20)
		params.MemoryLimitMiB = params.MemoryMiB
	}
	if r.CPUs > 0 {
		params.CPU, params.CPULimit = r.CPUs, r.CPUs
	}
	count, ids, err := r.GPUs.Devices()
	if err != nil {
		return err
	}
	if count < 0 || len(ids) > 0 {
		return atoll.Errorf("create", spec.Name, atoll.ErrUnavailable, "gpus %q: Modal counts GPUs: say how many", r.GPUs)
	}
	if count > 0 {
		params.GPU = fmt.Sprintf("%s:%d", p.opts.GPU, count)
	}
	return nil
}

// publishedPorts returns the public addresses of an instance's tunnels.
func (p *Provider) publishedPorts(ctx context.Context, spec *atoll.Spec, l *instance) ([]atoll.PublishedPort, error) {
	if p.opts.Tunnels == TunnelsOff || !spec.Publishes() {
		return nil, nil
	}
	all, err := l.box.Tunnels(ctx, tunnelTimeout)
	if err != nil {
		return nil, err
	}
	var list []atoll.PublishedPort
	for port, t := range all {
		host, number := t.Host, t.Port
		if p.opts.Tunnels == TunnelsTCP {
			if host, number, err = t.TCPSocket(); err != nil {
				return nil, err
			}
		}
		list = append(list, atoll.PublishedPort{Port: port, Address: net.JoinHostPort(host, strconv.Itoa(number))})
	}
	slices.SortFunc(list, func(a, b atoll.PublishedPort) int { return cmp.Compare(a.Port, b.Port) })
	return list, nil
}

// tunnelTimeout bounds the wait for tunnels.
const tunnelTimeout = 50 * time.Second

// findSecrets returns the Secrets with these names.
func (p *Provider) findSecrets(ctx context.Context, names []string) (list []*sdk.Secret, err error) {
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		secret, err := client.Secrets.FromName(ctx, name, nil)
		if err != nil {
			return nil, atoll.Errorf("create", "", kindOf(err), "secret %s: %w", name, plainError(err))
		}
		list = append(list, secret)
	}
	return list, nil
}

// bucketMounts returns the buckets that every sandbox mounts, by path.
func (p *Provider) bucketMounts(ctx context.Context) (map[string]*sdk.CloudBucketMount, error) {
	if len(p.opts.Buckets) == 0 {
		return nil, nil
	}
	client, err := p.service.sdkClient()
	if err != nil {
		return nil, err
	}
	all := map[string]*sdk.CloudBucketMount{}
	for _, b := range p.opts.Buckets {
		params := &sdk.CloudBucketMountParams{ReadOnly: b.ReadOnly}
		if b.Prefix != "" {
			params.KeyPrefix = &b.Prefix
		}
		if b.Endpoint != "" {
			params.BucketEndpointURL = &b.Endpoint
		}
		if b.Secret != "" {
			secret, err := p.findSecrets(ctx, []string{b.Secret})
			if err != nil {
				return nil, err
			}
			params.Secret = secret[0]
		}
		if all[b.Path], err = client.CloudBucketMounts.New(b.Name, params); err != nil {
			return nil, err
		}
	}
	return all, nil
}
