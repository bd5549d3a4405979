package main

import (
	"context"
	"os"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/provider/local"
	"github.com/seed46cd37a8/atoll/provider/plugin"
)

// A sample is a provider in a plugin.
type sample struct{ atoll.ProviderLayer }

func (s sample) Info() atoll.Info {
	info := s.ProviderLayer.Info()
	info.Name = "sample"
	return info
}

// A forgetful is a sample that cannot find sandboxes by name.
type forgetful struct{ sample }

func (forgetful) Resolve(context.Context, string, string) (string, error) {
	return "", atoll.E("resolve", "", atoll.ErrNotFound, nil)
}

// serveSample is the main function of the program atoll-sample. It breaks a promise if its setting says so.
func serveSample() {
	os.Exit(plugin.ServeProvider("sample", func(_ context.Context, r plugin.Request) (atoll.Provider, error) {
		var settings struct {
			Forgetful string `yaml:"forgetful"`
		}
		if err := plugin.DecodeSettings(r.Settings, &settings); err != nil {
			return nil, err
		}
		p, err := local.New(local.Options{Dir: r.StateDir})
		s := sample{atoll.ProviderLayer{Provider: p}}
		if settings.Forgetful != "" {
			return forgetful{s}, err
		}
		return s, err
	}))
}
