package config

import (
	"errors"
	"path/filepath"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/microvm"
)

func openMicroVM(cfg *Config, opts Options) (atoll.Provider, error) {
	bundles, err := cfg.Bundles(opts.Log)
	if err != nil {
		return nil, err
	}
	p, err := microvm.New(microvm.Options{
		Dir:     filepath.Join(cfg.StateDir, "microvm"),
		Bundles: bundles,
		Default: cfg.MicroVM.Bundle,
		Program: cfg.MicroVM.QEMU,
		Accel:   strings.TrimPrefix(cfg.MicroVM.Accel, "auto"),
		Debug:   cfg.MicroVM.Debug,
		Spare:   opts.Server,
		Log:     opts.Log,
	})
	if err != nil {
		return nil, errors.Join(err, bundles.Close())
	}
	return &withBundles{atoll.ProviderLayer{Provider: p}, bundles.Close}, nil
}

// withBundles closes them after the provider that uses them.
type withBundles struct {
	atoll.ProviderLayer
	after func() error
}

func (p *withBundles) Close() error { return errors.Join(p.ProviderLayer.Close(), p.after()) }
