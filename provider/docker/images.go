package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/moby/moby/api/pkg/authconfig"
	"github.com/moby/moby/api/types/registry"
	"github.com/moby/moby/client"

	"github.com/seed46cd37a8/atoll"
	"github.com/seed46cd37a8/atoll/internal/retry"
)

// An image is an image that the engine has.
type image struct {
	id       string // of its configuration; the engine creates containers from it
	name     string // its full name and its digest, as far as known
	digest   string // from the registry if known, otherwise the id
	user     string
	env      []string
	platform string
	size     int64
}

// ensureImage returns the image of a spec. If the engine does not have it, or the spec always asks
// the registry, ensureImage fetches it, unless its name has no registry. Kinds: ErrNotExist,
// ErrInvalid, ErrUnavailable.
func (p *Provider) ensureImage(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) (*image, error) {
	ref := cmp.Or(spec.Image, p.opts.Image)
	full, im, err := p.findImage(ctx, ref)
	if err != nil && !cerrdefs.IsNotFound(err) {
		return nil, err
	}
	missing, renew := err != nil, spec.Pull == atoll.PullAlways && !isLocal(full) && !strings.Contains(full, "@")
	if missing && spec.Pull == atoll.PullNever {
		return nil, atoll.Errorf("create", ref, atoll.ErrNotExist, "the engine has no image %q, and the pull policy is never: atoll pull fetches it", full)
	}
	if missing || renew {
		if err := p.fetchImage(ctx, full, spec.Pull, progress); err != nil {
			return nil, err
		}
		if im, err = p.inspectImage(ctx, full); err != nil {
			return nil, err
		}
	}
	return im, p.imageRecords.recordUsed(full, im.digest)
}

// findImage finds an image that the engine has, and its full name. If an image was built or
// loaded under a name without a registry, Podman stores it under localhost.
func (p *Provider) findImage(ctx context.Context, ref string) (full string, im *image, err error) {
	if full, err = normalizeRef(ref); err != nil {
		return "", nil, err
	}
	if im, err = p.inspectImage(ctx, full); !cerrdefs.IsNotFound(err) {
		return full, im, err
	}
	engine, infoErr := p.engineInfo(ctx)
	if infoErr != nil {
		return full, nil, infoErr
	}
	if local, ok := strings.CutPrefix(full, "docker.io/"); ok && engine.podman && !strings.HasPrefix(ref, "docker.io/") {
		local = "localhost/" + strings.TrimPrefix(local, "library/")
		if im, localErr := p.inspectImage(ctx, local); !cerrdefs.IsNotFound(localErr) {
			return local, im, localErr
		}
	}
	return full, nil, err
}

// normalizeRef returns the full name of an image. It returns an id unchanged.
func normalizeRef(ref string) (string, error) {
	if digest, err := reference.ParseAnyReference(ref); err == nil && strings.HasPrefix(digest.String(), "sha256:") {
		return digest.String(), nil
	}
	named, err := reference.ParseNormalizedNamed(ref)
	if err != nil {
		return "", atoll.Errorf("image", ref, atoll.ErrInvalid, "invalid image name (docker load and docker import add other images to the engine): %w", err)
	}
	return reference.TagNameOnly(named).String(), nil
}

// CheckImage returns an error if ref cannot be the name of an engine's image. Kinds: ErrInvalid.
func CheckImage(ref string) error {
	_, err := normalizeRef(cmp.Or(ref, DefaultImage))
	return err
}

// isLocal reports whether no registry can have an image with that name.
func isLocal(ref string) bool {
	return strings.HasPrefix(ref, "sha256:") || strings.HasPrefix(ref, "docker.io/atoll-local/")
}

// engineRef returns the name of an image in the engine. With Fetch, an image named by its digest
// has a tag instead: engines find only those by digest that they have pulled.
func (p *Provider) engineRef(ref string) string {
	repo, digest, ok := strings.Cut(ref, "@")
	if !ok || p.opts.Fetch == nil {
		return ref
	}
	return trimTag(repo) + ":" + strings.ReplaceAll(digest, ":", "-")
}

// trimTag returns a name without its tag.
func trimTag(repo string) string {
	if i := strings.LastIndexByte(repo, ':'); i > strings.LastIndexByte(repo, '/') {
		return repo[:i]
	}
	return repo
}

func (p *Provider) inspectImage(ctx context.Context, ref string) (*image, error) {
	found, err := p.engine.ImageInspect(ctx, p.engineRef(ref))
	if err != nil {
		return nil, err
	}
	im := &image{id: found.ID, digest: found.ID, platform: found.Os + "/" + found.Architecture, size: found.Size}
	repo, digest, _ := strings.Cut(ref, "@")
	repo = trimTag(repo)
	if p.engineRef(ref) != ref {
		im.digest = digest
	}
	for _, d := range found.RepoDigests {
		if full, err := normalizeRef(d); err == nil && strings.HasPrefix(full, repo+"@") {
			_, im.digest, _ = strings.Cut(full, "@")
		}
	}
	im.name = ref
	if !strings.Contains(ref, im.digest) {
		im.name += "@" + im.digest
	}
	if found.Config != nil {
		im.user, im.env = found.Config.User, found.Config.Env
	}
	return im, nil
}

// pullTimeout bounds the time of a pull with its retries.
const pullTimeout = 5 * time.Minute

// pullPolicy says how often and when a pull is retried.
var pullPolicy = retry.Policy{
	First: time.Second, Attempts: 3,
	If: func(err error) bool { return atoll.KindOf(err) == atoll.ErrUnavailable },
}

// fetchImage gets an image into the engine. Calls for the same image wait for each other, and
// the first one fetches it; with PullAlways, each does.
func (p *Provider) fetchImage(ctx context.Context, ref string, policy atoll.PullPolicy, progress func(atoll.Progress)) error {
	if isLocal(ref) && p.opts.Fetch == nil {
		return atoll.Errorf("create", ref, atoll.ErrNotExist, "the engine has no image %q, and no registry has it", ref)
	}
	lock, err := p.acquireLock(ctx, "create", "pull-"+hashText(ref))
	if err != nil {
		return err
	}
	defer lock.Release()
	before, err := p.inspectImage(ctx, ref)
	if err == nil && policy != atoll.PullAlways { // the previous holder of the lock has fetched it
		return p.imageRecords.recordUsed(ref, before.digest)
	}
	ctx, cancel := context.WithTimeout(ctx, pullTimeout)
	defer cancel()
	if err := pullPolicy.Do(ctx, func() error { return p.pullImage(ctx, ref, policy, progress) }); err != nil {
		return err
	}
	im, err := p.inspectImage(ctx, ref)
	if err != nil {
		return err
	}
	if before != nil && before.id == im.id { // it may be somebody else's
		return p.imageRecords.recordUsed(ref, im.digest)
	}
	return p.imageRecords.recordFetched(ref, im.digest)
}

// loadImage loads an image that Fetch returns.
func (p *Provider) loadImage(ctx context.Context, ref string, policy atoll.PullPolicy, progress func(atoll.Progress)) error {
	archive, err := p.opts.Fetch(ctx, ref, p.engineRef(ref), policy, progress)
	if err != nil {
		return err
	}
	defer archive.Close()
	stream, err := p.engine.ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err == nil {
		err = readProgress(stream, nil)
		_ = stream.Close()
	}
	if err != nil && ctx.Err() == nil {
		return atoll.Errorf("create", ref, kindOf(err), "load %s: %w", ref, err)
	}
	return errors.Join(ctx.Err(), err)
}

// pullImage gets an image from Fetch, or lets the engine pull it with the credentials of
// docker's command line.
func (p *Provider) pullImage(ctx context.Context, ref string, policy atoll.PullPolicy, progress func(atoll.Progress)) error {
	if p.opts.Fetch == nil {
		auth, err := registryAuth(ref)
		if err != nil {
			return atoll.Errorf("create", ref, atoll.ErrDenied, "docker's credentials: %w", err)
		}
		return p.pullFromRegistry(ctx, ref, auth, progress)
	}
	err := p.loadImage(ctx, ref, policy, progress)
	if atoll.KindOf(err) != atoll.ErrUnsupported || isLocal(ref) {
		return err
	}
	if err := p.pullFromRegistry(ctx, ref, "", progress); err != nil {
		return err
	}
	if as := p.engineRef(ref); as != ref {
		_, err := p.engine.ImageTag(ctx, client.ImageTagOptions{Source: ref, Target: as})
		return p.wrapError(ctx, "create", ref, err)
	}
	return nil
}

// pullFromRegistry lets the engine pull an image from its registry.
func (p *Provider) pullFromRegistry(ctx context.Context, ref, auth string, progress func(atoll.Progress)) error {
	stream, err := p.engine.ImagePull(ctx, ref, client.ImagePullOptions{RegistryAuth: auth})
	if err == nil {
		err = readProgress(stream, progress)
		_ = stream.Close()
	}
	if err == nil || ctx.Err() != nil {
		return errors.Join(ctx.Err(), err)
	}
	kind, text := atoll.ErrUnavailable, err.Error()
	switch {
	case cerrdefs.IsInvalidArgument(err):
		kind = atoll.ErrInvalid
	case cerrdefs.IsNotFound(err), strings.Contains(text, "not found"), strings.Contains(text, "manifest unknown"):
		kind = atoll.ErrNotExist
	case cerrdefs.IsUnauthorized(err), cerrdefs.IsPermissionDenied(err), strings.Contains(text, "denied"), strings.Contains(text, "unauthorized"):
		kind = atoll.ErrDenied
	}
	return atoll.Errorf("create", ref, kind, "pull %s: %w", ref, err)
}

// registryAuth returns the credentials for the registry of ref, in the engine's encoding; "" if
// there are none.
func registryAuth(ref string) (string, error) {
	parsed, err := name.ParseReference(ref)
	if err != nil {
		return "", err
	}
	found, err := authn.DefaultKeychain.Resolve(parsed.Context())
	if err != nil || found == authn.Anonymous {
		return "", err
	}
	auth, err := found.Authorization()
	if err != nil {
		return "", err
	}
	return authconfig.Encode(registry.AuthConfig{
		Username: auth.Username, Password: auth.Password, Auth: auth.Auth, IdentityToken: auth.IdentityToken, RegistryToken: auth.RegistryToken,
		ServerAddress: parsed.Context().RegistryStr(),
	})
}

// readProgress reads the progress of a pull or a load to its end, and returns the error in it.
func readProgress(stream io.Reader, progress func(atoll.Progress)) error {
	for dec := json.NewDecoder(stream); ; {
		var line struct {
			ID, Status, Error string
			ProgressDetail    struct{ Current, Total int64 }
		}
		err := dec.Decode(&line)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case line.Error != "":
			return errors.New(line.Error)
		}
		phase := map[string]string{"Downloading": "pull", "Extracting": "unpack"}[line.Status]
		if d := line.ProgressDetail; progress != nil && phase != "" && d.Total >= d.Current {
			progress(atoll.Progress{Phase: phase, Item: line.ID, Done: d.Current, Total: d.Total})
		}
	}
}

// Save returns an image of the engine in the format of docker save. Kinds: ErrNotExist,
// ErrUnavailable.
func (p *Provider) Save(ctx context.Context, ref string) (io.ReadCloser, error) {
	full, _, err := p.findImage(ctx, ref)
	if cerrdefs.IsNotFound(err) {
		return nil, atoll.Errorf("save image", ref, atoll.ErrNotExist, "the engine has no image %q", full)
	}
	if err != nil {
		return nil, p.wrapError(ctx, "save image", ref, err)
	}
	archive, err := p.engine.ImageSave(ctx, []string{full})
	return archive, p.wrapError(ctx, "save image", ref, err)
}

// Prepare implements atoll.Preparer.
func (p *Provider) Prepare(ctx context.Context, spec *atoll.Spec, progress func(atoll.Progress)) error {
	if _, err := spec.Complete(info.Name); err != nil {
		return err
	}
	_, err := p.ensureImage(ctx, spec, progress)
	return p.wrapError(ctx, "prepare", spec.Image, err)
}

// ResolveImage implements atoll.ImageResolver. It returns the digest that the engine has for
// that name.
func (p *Provider) ResolveImage(ctx context.Context, ref string) (string, error) {
	full, im, err := p.findImage(ctx, cmp.Or(ref, p.opts.Image))
	if cerrdefs.IsNotFound(err) {
		return "", atoll.Errorf("resolve image", ref, atoll.ErrNotExist, "the engine has no image %q", full)
	}
	if err != nil {
		return "", p.wrapError(ctx, "resolve image", ref, err)
	}
	return im.digest, nil
}

var (
	_ atoll.Preparer      = (*Provider)(nil)
	_ atoll.ImageResolver = (*Provider)(nil)
)
