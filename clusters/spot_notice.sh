#!/usr/bin/env bash
# Beside Ray on a rented worker: tells Ray when the cloud gives notice that it takes the machine back,
# for Ray (2.60) asks no cloud for that. A node that is known to leave gets no more cohorts, and what
# it takes along counts as no failure of theirs (max_failures); they go on elsewhere from their last
# checkpoints. Started by aws.yaml and gcp.yaml:
#
#   spot_notice.sh aws|gcp
set -u
metadata="${TRIPLU_RAY_METADATA:-http://169.254.169.254}" # on both clouds

# Two minutes before the end on AWS: the page is not there until then.
noticed_aws() {
  token="$(ask -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' "$metadata/latest/api/token")" &&
    ask -H "X-aws-ec2-metadata-token: $token" "$metadata/latest/meta-data/spot/instance-action"
}

# Half a minute before the end on Google Cloud.
noticed_gcp() {
  ask -H 'Metadata-Flavor: Google' "$metadata/computeMetadata/v1/instance/preempted" | grep -q TRUE
}

ask() { curl --silent --fail --max-time 2 "$@"; }

until "noticed_$1" >/dev/null; do sleep 5; done
# Ray takes only the end after the deadline for one that was announced, and ends nothing by itself.
ray drain-node --reason DRAIN_NODE_REASON_PREEMPTION --reason-message 'spot notice' \
  --deadline-remaining-seconds 1
