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

// cleanup is how long what was begun may take to be undone, whatever became of
// who began it.
const cleanup = 30 * time.Second

// rivals write one key at once, in CheckConditions.
const rivals = 8

// CheckConditions sees whether the conditions of Put hold in b, on a scratch object
// below prefix: there are services that say yes, and write whatever was asked.
// ErrUnsupported if they do not hold. A dozen small requests; at the same time, as
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
		return atoll.E("check conditions", b.String(), atoll.ErrUnsupported, fmt.Errorf("of objects in parts: %w", e.Err))
	}
	return cmp.Or(err, partsErr)
}

func checkConditions(ctx context.Context, b Bucket, prefix string) (err error) {
	key := prefix + ".conditions-" + atoll.NewID()
	if err := CheckKey(key); err != nil {
		return atoll.E("check conditions", b.String(), atoll.ErrInvalid, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		err = cmp.Or(err, b.Delete(ctx, key))
	}()
	put := func(text string, when Condition) (string, error) {
		o, err := b.Put(ctx, key, strings.NewReader(text), int64(len(text)), when)
		return o.Tag, err
	}
	// must is a write that has to happen, mustNot one that has to be refused.
	must := func(what, text string, when Condition) (string, error) {
		tag, err := put(text, when)
		if atoll.KindOf(err) == atoll.ErrConflict {
			return "", unsupported(b, "it refuses to write %s", what)
		}
		return tag, err
	}
	mustNot := func(what string, when Condition) error {
		switch _, err := put("wrong", when); {
		case err == nil:
			return unsupported(b, "it writes %s", what)
		case atoll.KindOf(err) != atoll.ErrConflict:
			return err
		}
		return nil
	}

	first, err := oneWins(put)
	if err != nil {
		return err
	}
	if first == "" {
		return unsupported(b, "of %d who write an object at once if it is absent, not one wins, but none or several", rivals)
	}
	if err := mustNot("an object that is there, if it is absent", Condition{Absent: true}); err != nil {
		return err
	}
	second, err := must("over an object, without a condition", "other", Condition{})
	if err != nil {
		return err
	}
	if second == first || second == "" {
		return unsupported(b, "its objects have no tags that change with them")
	}
	if err := mustNot("over an object that has changed since", Condition{Tag: first}); err != nil {
		return err
	}
	third, err := must("over an object that has not changed", "third", Condition{Tag: second})
	if err != nil {
		return err
	}
	if err := holds(ctx, b, key, third, "third"); err != nil {
		return err
	}
	if err := b.Delete(ctx, key); err != nil {
		return err
	}
	return mustNot("over an object that is gone", Condition{Tag: third})
}

// oneWins has many write at once what may be written once, and returns the tag of
// what was; "" if more than one was told that it has.
func oneWins(put func(string, Condition) (string, error)) (string, error) {
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

// holds sees that the object is the one that was written last.
func holds(ctx context.Context, b Bucket, key, tag, text string) error {
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
		return unsupported(b, "it has not what was written last")
	}
	return nil
}

func unsupported(b Bucket, format string, args ...any) error {
	return atoll.E("check conditions", b.String(), atoll.ErrUnsupported,
		fmt.Errorf(format+": two who write there at once would undo each other's work, use another service", args...))
}

// Sweep removes what writers below prefix left that were cut short more than age
// ago, such as parts of objects that were never put together: no list shows them,
// and services charge for them. Others' work that is younger goes on.
func Sweep(ctx context.Context, b Bucket, prefix string, age time.Duration) error {
	if s, ok := b.(interface {
		Sweep(ctx context.Context, prefix string, age time.Duration) error
	}); ok {
		return s.Sweep(ctx, prefix, age)
	}
	return nil
}
