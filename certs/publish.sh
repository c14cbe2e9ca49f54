#!/bin/sh
# Puts a CA into the caBundle of both webhook configurations, beside what is there: publish.sh CA [CONFIGURATION]
set -eu
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    sed -n 's/^# //p' "$0" >&2
    exit 2
fi
ca=$(cat "$1")
name=${2:-zz-pausegen}
for kind in mutatingwebhookconfiguration validatingwebhookconfiguration; do
    patch=''
    for webhook in $(kubectl get "$kind" "$name" -o jsonpath='{.webhooks[*].name}'); do
        present=$(kubectl get "$kind" "$name" \
            -o jsonpath="{.webhooks[?(@.name==\"$webhook\")].clientConfig.caBundle}" | base64 -d)
        case $present in
        *"$ca"*) bundle=$present ;;
        *) bundle=$(printf '%s\n%s\n' "$present" "$ca") ;;
        esac
        encoded=$(printf '%s\n' "$bundle" | base64 | tr -d '\n')
        patch="$patch${patch:+,}{\"name\":\"$webhook\",\"clientConfig\":{\"caBundle\":\"$encoded\"}}"
    done
    kubectl patch "$kind" "$name" --type=strategic -p "{\"webhooks\":[$patch]}"
done
