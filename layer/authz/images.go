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
	"golang.org/x/sync/singleflight"

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
	refusedTTL   = time.Minute      // one that was not stays refused
	maxAnswers   = 4096             // images to remember
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

	mu      sync.Mutex
	answers map[string]registryAnswer
	asking  singleflight.Group
}

// A registryAnswer says whether a registry gives an image to everybody.
type registryAnswer struct {
	time time.Time
	err  error // nil if it does
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
		allowed = canonicalPlace(allowed)
		if repository == allowed || strings.HasPrefix(repository, allowed+"/") {
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

// canonicalPlace returns the canonical name of a registry, a repository or a directory of repositories: users leave
// out the registry of Docker.
func canonicalPlace(place string) string {
	place = strings.TrimSuffix(place, "/")
	host, path, below := strings.Cut(place, "/")
	switch {
	case strings.ContainsAny(host, ".:") || host == "localhost":
		host = canonicalRegistry(strings.ToLower(host))
		if !below {
			return host
		}
		return host + "/" + path
	case !below:
		return "docker.io/library/" + place
	}
	return "docker.io/" + place
}

// checkPublic returns nil if the image's registry gives it to everybody.
func (p *ImagePolicy) checkPublic(ctx context.Context, ref name.Reference) error {
	key := ref.Name()
	p.mu.Lock()
	last, known := p.answers[key]
	p.mu.Unlock()
	switch age := time.Since(last.time); {
	case known && last.err == nil && age < publicTTL, known && last.err != nil && age < refusedTTL:
		return last.err
	}
	asked := p.asking.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout) // others may wait for the answer
		defer cancel()
		return nil, p.askRegistry(ctx, ref)
	})
	select {
	case answer := <-asked:
		if atoll.KindOf(answer.Err) == atoll.ErrUnavailable && known && last.err == nil {
			return nil // the machine may have the image
		}
		return answer.Err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// askRegistry asks the image's registry whether it gives the image to everybody, and remembers the answer.
func (p *ImagePolicy) askRegistry(ctx context.Context, ref name.Reference) error {
	opts := []remote.Option{remote.WithContext(ctx), remote.WithAuth(authn.Anonymous), remote.WithUserAgent("atoll")}
	if p.Transport != nil {
		opts = append(opts, remote.WithTransport(p.Transport))
	}
	_, err := remote.Head(ref, opts...)
	var answer *transport.Error
	switch {
	case err == nil:
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		err = atoll.Errorf("", "", atoll.ErrDenied, "image %s: its registry does not give it to everybody", ref)
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		err = atoll.Errorf("", "", atoll.ErrNotExist, "image %s: its registry has no such image", ref)
	default:
		return atoll.Errorf("", "", atoll.ErrUnavailable, "image %s: its registry does not answer whether everybody may have it: %w", ref, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.answers == nil || len(p.answers) >= maxAnswers {
		p.answers = map[string]registryAnswer{}
	}
	p.answers[ref.Name()] = registryAnswer{time.Now(), err}
	return err
}
