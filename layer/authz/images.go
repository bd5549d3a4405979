package authz

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/seed46cd37a8/atoll"
)

// PublicRegistries returns the well-known registries that have images for everybody.
func PublicRegistries() []string {
	return []string{
		"docker.io", "ghcr.io", "quay.io", "gcr.io", "mirror.gcr.io", "public.ecr.aws", "mcr.microsoft.com", "registry.k8s.io",
		"registry.gitlab.com", "registry.access.redhat.com", "registry.fedoraproject.org", "docker.elastic.co", "nvcr.io", "cgr.dev",
	}
}

const (
	publicTTL    = 10 * time.Minute // an image that was public stays allowed for so long without another request
	maxPublic    = 4096             // images to remember
	checkTimeout = 30 * time.Second // of the requests for one image
)

// An ImagePolicy decides which images accounts with auth.RoleProject may name: the machine pulls them with its own
// credentials, from an address that it can reach and its callers perhaps cannot, and shares them among projects.
// Its methods are safe for concurrent use.
type ImagePolicy struct {
	// Allow lists registries, repositories and directories of repositories whose images are allowed, private ones
	// too: "registry.example.com", "ghcr.io/acme/app", "docker.io/library".
	Allow []string
	// Public lists registries whose images are allowed if the registry gives them to everybody.
	Public []string
	// Transport carries the requests to the registries in Public. nil means http.DefaultTransport.
	Transport http.RoundTripper

	mu     sync.Mutex
	public map[string]time.Time // when the image was known to be public
}

// Check returns nil if the policy allows the image ref. It may ask the image's registry, and blocks for half a minute
// at most. Kinds: ErrDenied, ErrNotExist (the registry has no such image), ErrUnavailable (the registry does not answer).
func (p *ImagePolicy) Check(ctx context.Context, ref string) error {
	parsed, err := name.ParseReference(ref)
	if err != nil || isStored(ref) || slices.Contains(strings.Split(parsed.Context().RepositoryStr(), "/"), "..") {
		return atoll.Errorf("", "", atoll.ErrDenied, "image %s is not the name of an image in a registry", ref)
	}
	registry := canonicalRegistry(parsed.Context().RegistryStr())
	repository := registry + "/" + parsed.Context().RepositoryStr()
	for _, allowed := range p.Allow {
		if repository == allowed || strings.HasPrefix(repository, strings.TrimSuffix(allowed, "/")+"/") {
			return nil
		}
	}
	for _, public := range p.Public {
		if registry == public {
			return p.checkPublic(ctx, parsed)
		}
	}
	return atoll.Errorf("", "", atoll.ErrDenied, "image %s: projects may not use the registry %s", ref, registry)
}

// isStored reports whether providers take ref for an image that the machine has, by its id or a name that is never
// pulled, and not for one in a registry.
func isStored(ref string) bool {
	algorithm, _, _ := strings.Cut(ref, ":")
	return algorithm == "sha256" || algorithm == "sha512" || strings.HasPrefix(ref, "atoll-local/") || imageID().MatchString(ref)
}

var imageID = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[0-9a-f]{12,64}$`) })

// canonicalRegistry returns the name by which users know a registry.
func canonicalRegistry(host string) string {
	if host == name.DefaultRegistry {
		return "docker.io"
	}
	return host
}

// checkPublic returns nil if the image's registry gives it to everybody.
func (p *ImagePolicy) checkPublic(ctx context.Context, ref name.Reference) error {
	key := ref.Name()
	p.mu.Lock()
	since, known := p.public[key]
	p.mu.Unlock()
	if known && time.Since(since) < publicTTL {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	opts := []remote.Option{remote.WithContext(ctx), remote.WithAuth(authn.Anonymous), remote.WithUserAgent("atoll")}
	if p.Transport != nil {
		opts = append(opts, remote.WithTransport(p.Transport))
	}
	_, err := remote.Head(ref, opts...)
	var answer *transport.Error
	switch {
	case err == nil:
		p.rememberPublic(key)
		return nil
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return atoll.Errorf("", "", atoll.ErrDenied, "image %s: its registry does not give it to everybody", ref)
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return atoll.Errorf("", "", atoll.ErrNotExist, "image %s: its registry has no such image", ref)
	case known: // the registry does not answer, and the machine may have the image
		return nil
	}
	return atoll.Errorf("", "", atoll.ErrUnavailable, "image %s: its registry does not answer whether everybody may have it: %w", ref, err)
}

func (p *ImagePolicy) rememberPublic(key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.public == nil || len(p.public) >= maxPublic {
		p.public = map[string]time.Time{}
	}
	p.public[key] = time.Now()
}
