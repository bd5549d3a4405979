package providertest

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed46cd37a8/atoll"
)

var imagePromises = []promise{
	{"Prepare fetches an image and retains it until it is removed", []need{needStore, needPullable}, func(t *testing.T, h *harness) {
		h.fetchImage(t)
		img := h.findImage(t)
		if img == nil {
			t.Fatal("Images does not list it")
		}
		if img.Digest == "" || img.Size < 0 || img.InUse || img.Fetched.IsZero() || img.Used.IsZero() {
			t.Errorf("the image is %+v", *img)
		}
		if err := atoll.RemoveImage(h.newContext(t), h.p, h.cfg.pullable, false); err != nil {
			t.Errorf("RemoveImage: %v", err)
		}
		if img := h.findImage(t); img != nil {
			t.Errorf("after RemoveImage there is %+v", *img)
		}
		wantKind(t, "RemoveImage again", atoll.RemoveImage(h.newContext(t), h.p, h.cfg.pullable, false), atoll.ErrNotExist)
		h.fetchImage(t)
		if img = h.findImage(t); img == nil {
			t.Fatal("Images does not list what was fetched again")
		}
		if err := atoll.RemoveImage(h.newContext(t), h.p, img.Digest, false); err != nil {
			t.Errorf("RemoveImage of its digest: %v", err)
		}
		if img := h.findImage(t); img != nil {
			t.Errorf("after RemoveImage of its digest there is %+v", *img)
		}
	}},
	{"the image of a sandbox is in use, whether that runs or not", []need{needStore, needPullable, needRestart}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Image: h.cfg.pullable})
		h.checkImageInUse(t, "while it runs")
		wantKind(t, "RemoveImage with force while it runs", atoll.RemoveImage(h.newContext(t), h.p, h.cfg.pullable, true), atoll.ErrConflict)
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		h.checkImageInUse(t, "while it is stopped")
		if err := sb.Remove(h.newContext(t), atoll.RemoveVolumes()); err != nil {
			t.Fatalf("Remove: %v", err)
		}
		if img := h.findImage(t); img == nil || img.InUse {
			t.Errorf("after the sandbox is gone the image is %+v", img)
		}
		if err := atoll.RemoveImage(h.newContext(t), h.p, h.cfg.pullable, false); err != nil {
			t.Errorf("RemoveImage: %v", err)
		}
	}},
	{"a stopped sandbox can start after its image was removed by force", []need{needStore, needPullable, needRestart}, func(t *testing.T, h *harness) {
		sb := h.createSandbox(t, atoll.Spec{Image: h.cfg.pullable})
		if err := sb.Stop(h.newContext(t), 0); err != nil {
			t.Fatalf("Stop: %v", err)
		}
		if err := atoll.RemoveImage(h.newContext(t), h.p, h.cfg.pullable, true); err != nil {
			t.Fatalf("RemoveImage with force: %v", err)
		}
		if img := h.findImage(t); img != nil {
			t.Errorf("after RemoveImage there is %+v", *img)
		}
		if err := sb.Start(h.newContext(t)); err != nil {
			t.Errorf("Start: %v", err)
		}
	}},
	{"PruneImages removes the unused images that its options select", []need{needStore, needPullable}, func(t *testing.T, h *harness) {
		h.fetchImage(t)
		img := h.findImage(t)
		if img == nil {
			t.Fatal("Images does not list it")
		}
		for _, tt := range []struct {
			opts atoll.PruneOptions
			want bool
		}{
			{atoll.PruneOptions{}, false}, // the image has a name
			{atoll.PruneOptions{All: true, UnusedFor: atoll.Duration(time.Hour)}, false},
			{atoll.PruneOptions{All: true}, true},
			{atoll.PruneOptions{All: true}, false},
		} {
			pruned, err := atoll.PruneImages(h.newContext(t), h.p, tt.opts)
			if err != nil {
				t.Fatalf("PruneImages(%+v): %v", tt.opts, err)
			}
			if got := slices.Contains(pruned.Images, img.Digest); got != tt.want {
				t.Errorf("PruneImages(%+v) = %+v; whether it has %s is %v, want %v", tt.opts, pruned, img.Digest, got, tt.want)
			}
			if tt.want && pruned.Size < img.Size {
				t.Errorf("PruneImages = %+v, want the %d bytes of the image at least", pruned, img.Size)
			}
		}
		if img := h.findImage(t); img != nil {
			t.Errorf("after PruneImages there is %+v", *img)
		}
	}},
	{"Prepare fetches all that Create needs", []need{needImages, needPullable, needSource}, func(t *testing.T, h *harness) {
		var seen []atoll.Progress
		spec := atoll.Spec{Image: h.cfg.pullable}
		err := atoll.Prepare(h.newContext(t), h.p, &spec, func(p atoll.Progress) { seen = append(seen, p) })
		if err != nil {
			t.Fatalf("Prepare: %v", err)
		}
		for _, p := range seen {
			if p.Phase == "" || p.Done < 0 || p.Total > 0 && p.Done > p.Total {
				t.Errorf("progress %+v", p)
			}
		}
		if h.p.Info().Caps.ImageStore { // a provider without one may fetch images on demand
			h.cfg.source.unplug(t)
		}
		sb := h.createSandbox(t, spec)
		if st := h.getStatus(t, sb); !strings.Contains(st.Image, h.cfg.pullable) {
			t.Errorf("the image in use is %q, want %s", st.Image, h.cfg.pullable)
		}
	}},
	{"Create refuses an image that cannot be fetched, and leaves nothing", []need{needStore, needPullable, needSource}, func(t *testing.T, h *harness) {
		h.cfg.source.unplug(t)
		spec := atoll.Spec{Image: h.cfg.pullable}
		wantKind(t, "Prepare", atoll.Prepare(h.newContext(t), h.p, &spec, nil), atoll.ErrNotExist, atoll.ErrUnavailable, atoll.ErrDenied)
		h.wantRefused(t, spec, atoll.ErrNotExist, atoll.ErrUnavailable, atoll.ErrDenied)
		if img := h.findImage(t); img != nil {
			t.Errorf("the failed fetch left %+v", *img)
		}
	}},
	{"Create refuses an image that its registry lacks, and leaves nothing", []need{needImages, needPullable, needSource}, func(t *testing.T, h *harness) {
		h.wantRefused(t, atoll.Spec{Image: missingTag(h.cfg.pullable)}, atoll.ErrNotExist, atoll.ErrUnavailable, atoll.ErrDenied)
	}},
	{"Spec.Pull decides whether the registry is asked for an image that is there", []need{needImages, needSource, needMoving, needFiles}, func(t *testing.T, h *harness) {
		file, ref := h.cfg.source.file, h.cfg.moving(t, "old")
		h.checkContent(t, h.createSandbox(t, atoll.Spec{Image: ref, Pull: atoll.PullMissing}), file, "old")
		h.cfg.moving(t, "newer")
		h.checkContent(t, h.createSandbox(t, atoll.Spec{Image: ref, Pull: atoll.PullNever}), file, "old")
		h.checkContent(t, h.createSandbox(t, atoll.Spec{Image: ref, Pull: atoll.PullAlways}), file, "newer")
		h.wantRefused(t, atoll.Spec{Image: missingTag(ref), Pull: atoll.PullNever}, atoll.ErrNotExist)
		if !h.p.Info().Caps.ImageStore {
			return // Prepare may do nothing
		}
		h.cfg.moving(t, "newest")
		if err := atoll.Prepare(h.newContext(t), h.p, &atoll.Spec{Image: ref, Pull: atoll.PullAlways}, nil); err != nil {
			t.Fatalf("Prepare: %v", err)
		}
		h.checkContent(t, h.createSandbox(t, atoll.Spec{Image: ref, Pull: atoll.PullMissing}), file, "newest")
	}},
	{"each sandbox starts with the files of its image, and changes only its own", []need{needImages, needPullable, needSource, needFiles}, func(t *testing.T, h *harness) {
		file, text := h.cfg.source.file, h.cfg.source.text
		h.checkMissing(t, h.plainSandbox(t), file)
		a, b := h.createSandbox(t, atoll.Spec{Image: h.cfg.pullable}), h.createSandbox(t, atoll.Spec{Image: h.cfg.pullable})
		h.checkContent(t, a, file, text)
		h.writeFile(t, a, file, "changed")
		h.checkContent(t, a, file, "changed")
		h.checkContent(t, b, file, text)
		h.checkContent(t, h.createSandbox(t, atoll.Spec{Image: h.cfg.pullable}), file, text)
	}},
	{"ResolveImage returns the digest of a stored image, and fetches nothing", []need{needStore, needPullable}, func(t *testing.T, h *harness) {
		_, err := atoll.ResolveImage(h.newContext(t), h.p, h.cfg.pullable)
		if atoll.KindOf(err) == atoll.ErrUnsupported {
			t.Skip("the provider does not resolve images")
		}
		wantKind(t, "ResolveImage of a missing image", err, atoll.ErrNotExist)
		if img := h.findImage(t); img != nil {
			t.Errorf("ResolveImage fetched %+v", *img)
		}
		_, err = atoll.ResolveImage(h.newContext(t), h.p, "NO such::image")
		wantKind(t, "ResolveImage of an invalid name", err, atoll.ErrInvalid)
		if _, err := atoll.ResolveImage(h.newContext(t), h.p, ""); err != nil {
			wantKind(t, "ResolveImage of the default image", err, atoll.ErrNotExist)
		}
		sb := h.createSandbox(t, atoll.Spec{Image: h.cfg.pullable})
		digest, err := atoll.ResolveImage(h.newContext(t), h.p, h.cfg.pullable)
		if img := h.findImage(t); err != nil || img == nil || digest != img.Digest {
			t.Errorf("ResolveImage: %q, %v; the image is %+v", digest, err, img)
		}
		if st := h.getStatus(t, sb); strings.Contains(st.Image, "@") && !strings.HasSuffix(st.Image, "@"+digest) {
			t.Errorf("the image in use is %q, want it with %s", st.Image, digest)
		}
	}},
	{"PruneImages refuses a negative age", []need{needStore}, func(t *testing.T, h *harness) {
		_, err := atoll.PruneImages(h.newContext(t), h.p, atoll.PruneOptions{All: true, UnusedFor: -1})
		wantKind(t, "PruneImages", err, atoll.ErrInvalid)
	}},
	{"RemoveImage refuses an invalid name", []need{needStore}, func(t *testing.T, h *harness) {
		for _, ref := range []string{"", "NO such::image", "a\x00b", "/no/such/path"} {
			wantKind(t, "RemoveImage", atoll.RemoveImage(h.newContext(t), h.p, ref, false), atoll.ErrInvalid)
		}
	}},
}

// missingTag returns the name of an image with a tag that does not exist.
func missingTag(ref string) string {
	name, _, _ := strings.Cut(ref, "@")
	if i := strings.LastIndex(name, ":"); i > strings.LastIndex(name, "/") {
		name = name[:i]
	}
	return name + ":no-such-tag"
}

// fetchImage fetches the image of option PullableImage.
func (h *harness) fetchImage(t *testing.T) {
	t.Helper()
	if err := atoll.Prepare(h.newContext(t), h.p, h.completeSpec(atoll.Spec{Image: h.cfg.pullable}), nil); err != nil {
		t.Fatalf("Prepare: %v", err)
	}
}

// findImage returns the image of option PullableImage, or nil if the provider's store does not have it.
func (h *harness) findImage(t *testing.T) *atoll.Image {
	t.Helper()
	all, err := atoll.Images(h.newContext(t), h.p)
	if err != nil {
		t.Fatalf("Images: %v", err)
	}
	if !slices.IsSortedFunc(all, func(a, b atoll.Image) int { return strings.Compare(a.Ref, b.Ref) }) {
		t.Errorf("Images is not sorted: %+v", all)
	}
	i := slices.IndexFunc(all, func(img atoll.Image) bool { return strings.HasSuffix(img.Ref, h.cfg.pullable) })
	if i < 0 {
		return nil
	}
	if name := h.p.Info().Name; all[i].Provider != name {
		t.Errorf("the image's provider is %q, want %q", all[i].Provider, name)
	}
	return &all[i]
}

// checkImageInUse checks that the image is in use and cannot be removed.
func (h *harness) checkImageInUse(t *testing.T, when string) {
	t.Helper()
	img := h.findImage(t)
	if img == nil || !img.InUse {
		t.Fatalf("%s the image is %+v, want it in use", when, img)
	}
	wantKind(t, "RemoveImage "+when, atoll.RemoveImage(h.newContext(t), h.p, h.cfg.pullable, false), atoll.ErrConflict)
	wantKind(t, "RemoveImage of its digest "+when, atoll.RemoveImage(h.newContext(t), h.p, img.Digest, false), atoll.ErrConflict)
	pruned, err := atoll.PruneImages(h.newContext(t), h.p, atoll.PruneOptions{All: true})
	if err != nil || slices.Contains(pruned.Images, img.Digest) {
		t.Errorf("PruneImages %s = %+v, %v", when, pruned, err)
	}
	if h.findImage(t) == nil {
		t.Errorf("%s the image is gone", when)
	}
}
