package main

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/config"
	"github.com/seed46cd37a8/atoll/internal/secretsource"
)

// addPolicy adds the lists of --policy to a spec.
func (f *specFlags) addPolicy(s *atoll.Spec) error {
	if f.policy == "" {
		return nil
	}
	p, err := config.LoadPolicy(f.policy)
	if err != nil {
		return usageErrorf("%w", err)
	}
	s.Network.Allow = append(p.Allow, s.Network.Allow...)
	s.Network.Deny = append(p.Deny, s.Network.Deny...)
	s.Network.Rules, s.Secrets = p.Rules, p.Secrets
	return nil
}

// addSecrets adds the secrets of --secret to a spec, and reads the values that only this process can read: those of its environment, and
// for a server on another machine, whose address is url, those of files and stores here.
func (f *specFlags) addSecrets(ctx context.Context, s *atoll.Spec, env []string, url string) error {
	for _, text := range f.secrets {
		one, err := parseSecret(text)
		if err != nil {
			return err
		}
		s.Secrets = append(s.Secrets, one)
	}
	remote := url != "" && !strings.HasPrefix(url, "unix:")
	for i := range s.Secrets {
		if err := loadSecret(ctx, &s.Secrets[i], env, remote); err != nil {
			return usageErrorf("secret %s: %w", s.Secrets[i].Name, err)
		}
	}
	return nil
}

// parseSecret parses a value of --secret.
func parseSecret(text string) (s atoll.Secret, err error) {
	at := strings.LastIndexByte(text, '@')
	if at < 0 {
		name, _, _ := strings.Cut(text, "=")
		return s, usageErrorf("secret %s: name the hosts that get it, like API_KEY@api.example.com or API_KEY=file:/path@api.example.com", name)
	}
	name, source, ok := strings.Cut(text[:at], "=")
	if !ok {
		source = "env:" + name
	}
	if !secretsource.IsKnown(source) {
		return s, usageErrorf("secret %s: write where the value is, as %s, and not the value itself, which other users could see in the list of processes", name, secretsource.Forms)
	}
	return atoll.Secret{Name: name, Source: source, Hosts: strings.Split(text[at+1:], ",")}, nil
}

// loadSecret reads the value of a secret from the environment env, and from a file or a store if remote is set. The source is then nothing
// for the server.
func loadSecret(ctx context.Context, s *atoll.Secret, env []string, remote bool) error {
	scheme, source, _ := strings.Cut(s.Source, ":")
	switch {
	case scheme == "env":
		for _, kv := range env {
			if v, ok := strings.CutPrefix(kv, source+"="); ok {
				s.Value = atoll.SecretValue(v)
			}
		}
		if s.Value == "" {
			return usageErrorf("the variable %s is not set here, or empty", source)
		}
	case scheme == "file":
		path, err := filepath.Abs(source)
		if err != nil {
			return err
		}
		s.Source = "file:" + path
		value, err := secretsource.Read(ctx, s.Source)
		if err != nil {
			return err
		}
		if remote {
			s.Value = value
		}
	case remote:
		value, err := secretsource.Read(ctx, s.Source)
		if err != nil {
			return err
		}
		s.Value = value
	}
	if remote {
		s.Source = ""
	}
	return nil
}

// withoutEntries returns a list without some entries.
func withoutEntries(list, entries []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(e string) bool { return slices.Contains(entries, e) })
}
