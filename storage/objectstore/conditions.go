package objectstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/seed46cd37a8/atoll"
)

// cleanupTimeout bounds the removal of the scratch object, also when the caller's
// context has ended.
const cleanupTimeout = 30 * time.Second

// rivals is the number of concurrent writers of one key in CheckConditions.
const rivals = 8

// CheckConditions tests whether b keeps the conditions of Put, on a scratch object
// below prefix: some services report success and write regardless. It returns
// ErrUnsupported if b doesn't. It makes a dozen small requests; and at the same time as
// many again for a bucket that stores large objects in another way.
func CheckConditions(ctx context.Context, b Bucket, prefix string) error {
	parts, ok := b.(interface{ InParts() Bucket })
	if !ok {
		return checkConditions(ctx, b, prefix)
	}
	inParts := make(chan error, 1)
	go func() { inParts <- checkConditions(ctx, parts.InParts(), prefix) }()
	err, partsErr := checkConditions(ctx, b, prefix), <-inParts
	if e, ok := errors.AsType[*atoll.Error](partsErr); ok && err == nil && e.Kind == atoll.ErrUnsupported {
		return atoll.E("check conditions", b.String(), atoll.ErrUnsupported, fmt.Errorf("multipart uploads: %w", e.Err))
	}
	return cmp.Or(err, partsErr)
}

func checkConditions(ctx context.Context, b Bucket, prefix string) (err error) {
	key := prefix + ".conditions-" + atoll.NewID()
	if err := CheckKey(key); err != nil {
		return atoll.E("check conditions", b.String(), atoll.ErrInvalid, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		err = cmp.Or(err, b.Delete(ctx, key))
	}()
	put := func(text string, when Condition) (string, error) {
		o, err := b.Put(ctx, key, strings.NewReader(text), int64(len(text)), when)
		return o.Tag, err
	}
	// must makes a write that has to succeed, mustNot one that the service has to
	// refuse.
	must := func(what, text string, when Condition) (string, error) {
		tag, err := put(text, when)
		if atoll.KindOf(err) == atoll.ErrConflict {
			return "", unsupportedError(b, "the service refuses to write %s", what)
		}
		return tag, err
	}
	mustNot := func(what string, when Condition) error {
		switch _, err := put("wrong", when); {
		case err == nil:
			return unsupportedError(b, "the service writes %s", what)
		case atoll.KindOf(err) != atoll.ErrConflict:
			return err
		}
		return nil
	}

	first, err := racePut(put)
	if err != nil {
		return err
	}
	if first == "" {
		return unsupportedError(b, "of %d concurrent writes of an absent object, none or several succeeded instead of one", rivals)
	}
	if err := mustNot("an existing object on the condition that it is absent", Condition{Absent: true}); err != nil {
		return err
	}
	second, err := must("over an object without a condition", "other", Condition{})
	if err != nil {
		return err
	}
	if second == first || second == "" {
		return unsupportedError(b, "the tag of an object doesn't change with its content")
	}
	if err := mustNot("over an object that has changed since", Condition{Tag: first}); err != nil {
		return err
	}
	third, err := must("over an object that has not changed", "third", Condition{Tag: second})
	if err != nil {
		return err
	}
	if err := checkContent(ctx, b, key, third, "third"); err != nil {
		return err
	}
	if err := b.Delete(ctx, key); err != nil {
		return err
	}
	return mustNot("over an object that is gone", Condition{Tag: third})
}

// racePut writes one absent object from many goroutines at once and returns the tag of
// the one write that succeeded; "" if none did or more than one.
func racePut(put func(string, Condition) (string, error)) (string, error) {
	var tags [rivals]string
	var errs [rivals]error
	var all sync.WaitGroup
	for i := range rivals {
		all.Go(func() { tags[i], errs[i] = put(fmt.Sprint("rival ", i), Condition{Absent: true}) })
	}
	all.Wait()
	tag, won := "", 0
	for i, err := range errs {
		switch {
		case err == nil:
			tag, won = tags[i], won+1
		case atoll.KindOf(err) != atoll.ErrConflict:
			return "", err
		}
	}
	if won != 1 {
		return "", nil
	}
	return tag, nil
}

// checkContent returns an error unless the object holds the text and has the tag that
// were written last.
func checkContent(ctx context.Context, b Bucket, key, tag, text string) error {
	r, o, err := b.Get(ctx, key, 0, -1)
	if err != nil {
		return err
	}
	defer r.Close()
	got, err := io.ReadAll(io.LimitReader(r, 100))
	if err != nil {
		return err
	}
	if string(got) != text || o.Tag != tag {
		return unsupportedError(b, "an object doesn't hold what was written last")
	}
	return nil
}

func unsupportedError(b Bucket, format string, args ...any) error {
	return atoll.E("check conditions", b.String(), atoll.ErrUnsupported,
		fmt.Errorf(format+": concurrent writers would overwrite each other's work; use another service", args...))
}

// Sweep removes unfinished writes below prefix that are older than age, such as the
// parts of multipart uploads that were never completed: no list shows them, and
// services charge for them. Younger writes of other programs continue.
func Sweep(ctx context.Context, b Bucket, prefix string, age time.Duration) error {
	if s, ok := b.(interface {
		Sweep(ctx context.Context, prefix string, age time.Duration) error
	}); ok {
		return s.Sweep(ctx, prefix, age)
	}
	return nil
}
