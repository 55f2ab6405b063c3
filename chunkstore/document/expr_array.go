package document

import (
	"go.mongodb.org/mongo-driver/v2/bson"
)

func arrayLength(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	if args[0].Type != bson.TypeArray {
		return wrongType(17124, "The argument to %s must be an array, but was of type: %s", name, typeName(args[0].Type))
	}
	n := count(args[0].Value)
	return e.int(int64(n)), e.step(n)
}

func isArray(_ *evaluation, _ string, args []bson.RawValue) (bson.RawValue, error) {
	return boolValue(args[0].Type == bson.TypeArray), nil
}

func arrayElementAt(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	at, whole := wholeNumber(args[1])
	switch {
	case isNullish(args[0]) || isNullish(args[1]):
		return null, nil
	case args[0].Type != bson.TypeArray:
		return wrongType(28689, "%s's first argument must be an array, but is %s", name, typeName(args[0].Type))
	case rank(args[1].Type) != rank(bson.TypeInt32):
		return wrongType(28690, "%s's second argument must be a numeric value, but is %s", name, typeName(args[1].Type))
	case !whole:
		return wrongType(28691, "%s's second argument must be representable as a 32-bit integer: %s", name, show(args[1]))
	}
	return e.elementAt(args[0].Value, at)
}

// elementAt is element i of an array, from the end when i is negative; else missing.
func (e *evaluation) elementAt(array []byte, i int64) (bson.RawValue, error) {
	n := count(array)
	if i < 0 {
		i += int64(n)
	}
	if err := e.step(n); err != nil || i < 0 || i >= int64(n) {
		return missing, err
	}
	w := walkOf(array)
	for range i {
		w.next()
	}
	el, _ := w.next()
	return el.value, nil
}

// endOfArray is $first and $last.
func endOfArray(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	switch {
	case isNullish(args[0]):
		return null, nil
	case args[0].Type != bson.TypeArray:
		return wrongType(28689, "%s's argument must be an array, but is %s", name, typeName(args[0].Type))
	case name == "$last":
		return e.elementAt(args[0].Value, -1)
	}
	return e.elementAt(args[0].Value, 0)
}

func isIn(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	if args[1].Type != bson.TypeArray {
		return wrongType(40081, "%s requires an array as a second argument, found: %s", name, typeName(args[1].Type))
	}
	for w := walkOf(args[1].Value); ; {
		el, ok := w.next()
		if !ok {
			return falseVal, nil
		}
		if c, err := e.compare(el.value, args[0]); err != nil || c == 0 {
			return trueValue, err
		}
	}
}

func concatArrays(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	size := 0
	for _, v := range args {
		switch {
		case isNullish(v):
			return null, nil
		case v.Type != bson.TypeArray:
			return wrongType(28664, "%s only supports arrays, not %s", name, typeName(v.Type))
		}
		size += len(v.Value)
	}
	if err := e.charge(size); err != nil {
		return missing, err
	}
	var all []bson.RawValue
	for _, v := range args {
		all = append(all, valuesOf(v.Value)...)
	}
	return e.array(all)
}

func mergeObjects(e *evaluation, name string, args []bson.RawValue) (bson.RawValue, error) {
	if len(args) == 1 && args[0].Type == bson.TypeArray {
		args = valuesOf(args[0].Value)
	}
	merged := &target{} // $set of every field, one document after another
	for _, v := range args {
		switch {
		case isNullish(v):
			continue
		case v.Type != bson.TypeEmbeddedDocument:
			return wrongType(40400, "%s requires object inputs, but input %s is of type %s", name, show(v), typeName(v.Type))
		}
		if err := e.charge(len(v.Value)); err != nil {
			return missing, err
		}
		merged.merge(v.Value)
	}
	a := application{}
	out, err := a.document(nil, emptyDocument, merged)
	return documentValue(out), err
}

// merge sets the fields of doc on top of those that are there.
func (t *target) merge(doc []byte) {
	for w := walkOf(doc); ; {
		e, ok := w.next()
		if !ok {
			return
		}
		i := t.find(e.name)
		if i < 0 {
			i = len(t.children)
			t.children = append(t.children, &target{name: string(e.name)})
			t.index(i)
		}
		t.children[i].modifier = setTo{e.value}
	}
}
