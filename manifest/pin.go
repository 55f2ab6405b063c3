package manifest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/granarydb/granary/manifest/errkind"
)

// pinTries bounds how often a pin is made anew because another commit came along with it.
const pinTries = 20

// Pin keeps everything that the root shows now: a commit registers the pin, and an immutable
// copy of the version that this commit made is written then. Between the two nothing is
// collected, since a pin that cannot be read stops GC; a process that dies there leaves a pin
// without a copy, which DropPin ends.
//
// Errors: as Commit; whatever was registered is taken back then, if that is possible.
func (r *Root) Pin(ctx context.Context, name string, expiresAt int64, millis int64) (Pin, error) {
	pin, _, err := r.PinState(ctx, name, expiresAt, millis)
	return pin, err
}

// PinState is Pin, and the version that is pinned.
func (r *Root) PinState(ctx context.Context, name string, expiresAt int64, millis int64) (Pin, *State, error) {
	for range pinTries {
		pin := Pin{ID: r.host.ID16(), Name: name, ExpiresAt: expiresAt}
		s, err := r.Commit(ctx, Edit{Op: r.host.ID16(), Changes: []Change{AddPin{Pin: pin}}, Millis: millis})
		if err != nil {
			return Pin{}, nil, err
		}
		// A state that is newer than the pin is no copy of its version.
		if i := slices.IndexFunc(s.Pins(), func(p Pin) bool { return p.ID == pin.ID }); i >= 0 && s.Pins()[i].Version == s.Version() {
			pin = s.Pins()[i]
			if err = r.copyPin(ctx, s, pin); err == nil {
				return pin, s, nil
			}
		}
		if undo := r.Unpin(context.WithoutCancel(ctx), pin.ID, millis); undo != nil || err != nil {
			return Pin{}, nil, errors.Join(err, undo)
		}
	}
	return Pin{}, nil, fmt.Errorf("pin %q: %w: other commits came along %d times", name, errkind.Throttled, pinTries)
}

// copyPin writes the copy. A second try that finds it there has found the first one's.
func (r *Root) copyPin(ctx context.Context, s *State, pin Pin) error {
	object, err := EncodeRoot(s)
	if err != nil {
		return err
	}
	for try := 0; ; try++ {
		_, err = r.cell.Swap(ctx, PinKey(pin.ID), object, "")
		switch {
		case err == nil, errors.Is(err, errkind.Conflict):
			return nil
		case try == 5:
			return fmt.Errorf("copy of pin %q: %w", pin.Name, err)
		}
		if err := r.host.Sleep(ctx, r.host.Jitter(time.Second)); err != nil {
			return err
		}
	}
}

// Unpin gives a pin up; one that is not there is no error. Its copy is deleted by GC.
func (r *Root) Unpin(ctx context.Context, id [16]byte, millis int64) error {
	_, err := r.Commit(ctx, Edit{Op: r.host.ID16(), Changes: []Change{DropPin{ID: id}}, Millis: millis})
	return err
}

// Pinned reads the root version that a pin keeps. Errors: SnapshotUnavailable when no pin, in a
// root that was read by this call, keeps it; Corrupt.
func (r *Root) Pinned(ctx context.Context, v Version) (*State, error) {
	s, _, err := r.Load(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(s.Pins(), func(p Pin) bool { return p.Version == v })
	if i < 0 {
		return nil, fmt.Errorf("root version %d: %w: no pin keeps it", v, errkind.SnapshotUnavailable)
	}
	pinned, err := r.Copy(ctx, PinKey(s.Pins()[i].ID))
	if errors.Is(err, errkind.NotFound) {
		return nil, fmt.Errorf("pin %q of root version %d: %w: %w", s.Pins()[i].Name, v, errkind.Corrupt, err)
	}
	return pinned, err
}
