# What spotd needs in this AWS account: `terraform init`, and `terraform apply`.
terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

provider "aws" {
  alias = "us_east_1"
  region = "us-east-1"
}

provider "aws" {
  alias = "eu_north_1"
  region = "eu-north-1"
}

data "aws_caller_identity" "here" {
  provider = aws.us_east_1
}

resource "aws_iam_role" "spotd_control_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-control-0123456789ab"
  assume_role_policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Principal": {
        "Service": "ec2.amazonaws.com",
        "AWS": "arn:aws:iam::${data.aws_caller_identity.here.account_id}:root"
      },
      "Action": "sts:AssumeRole"
    }
  ]
}
JSON
}

resource "aws_iam_role_policy" "spotd_control_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-control-0123456789ab"
  role = aws_iam_role.spotd_control_0123456789ab.name
  policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "Look",
      "Effect": "Allow",
      "Action": [
        "ec2:DescribeInstances",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeSpotPriceHistory",
        "ec2:DescribeSpotInstanceRequests",
        "ec2:DescribeImages",
        "ec2:DescribeSubnets",
        "ec2:DescribeSecurityGroups",
        "ec2:DescribeAvailabilityZones",
        "ec2:DescribeCapacityReservations",
        "servicequotas:GetServiceQuota",
        "ec2:GetSpotPlacementScores",
        "ec2:DescribeVolumes",
        "ec2:DescribeNetworkInterfaces",
        "ec2:DescribeAddresses",
        "ec2:DescribePlacementGroups",
        "ec2:DescribeSnapshots"
      ],
      "Resource": [
        "*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ]
        }
      }
    },
    {
      "Sid": "LookAtPrices",
      "Effect": "Allow",
      "Action": [
        "pricing:GetProducts"
      ],
      "Resource": [
        "*"
      ]
    },
    {
      "Sid": "ReadPublicParameters",
      "Effect": "Allow",
      "Action": [
        "ssm:GetParameter"
      ],
      "Resource": [
        "arn:aws:ssm:*::parameter/aws/service/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ]
        }
      }
    },
    {
      "Sid": "CreateTagged",
      "Effect": "Allow",
      "Action": [
        "ec2:RunInstances"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:instance/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        },
        "StringLike": {
          "ec2:InstanceType": [
            "*"
          ]
        }
      }
    },
    {
      "Sid": "CreateFromParts",
      "Effect": "Allow",
      "Action": [
        "ec2:RunInstances"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:volume/*",
        "arn:aws:ec2:*:*:network-interface/*",
        "arn:aws:ec2:*:*:spot-instances-request/*",
        "arn:aws:ec2:*::image/*",
        "arn:aws:ec2:*:*:subnet/*",
        "arn:aws:ec2:*:*:security-group/*",
        "arn:aws:ec2:*:*:capacity-reservation/*",
        "arn:aws:ec2:*:*:placement-group/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ]
        }
      }
    },
    {
      "Sid": "TagWhatIsCreated",
      "Effect": "Allow",
      "Action": [
        "ec2:CreateTags"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:instance/*",
        "arn:aws:ec2:*:*:volume/*",
        "arn:aws:ec2:*:*:network-interface/*",
        "arn:aws:ec2:*:*:spot-instances-request/*",
        "arn:aws:ec2:*::image/*",
        "arn:aws:ec2:*::snapshot/*"
      ],
      "Condition": {
        "StringEquals": {
          "ec2:CreateAction": [
            "RunInstances",
            "CreateImage"
          ],
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "GroupGangs",
      "Effect": "Allow",
      "Action": [
        "ec2:CreatePlacementGroup"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:placement-group/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "TagGroups",
      "Effect": "Allow",
      "Action": [
        "ec2:CreateTags"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:placement-group/*"
      ],
      "Condition": {
        "StringEquals": {
          "ec2:CreateAction": "CreatePlacementGroup",
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "MoveOnExpiryOfOwn",
      "Effect": "Allow",
      "Action": [
        "ec2:CreateTags"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:instance/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        },
        "ForAllValues:StringEquals": {
          "aws:TagKeys": [
            "spotd-expires"
          ]
        },
        "Null": {
          "aws:TagKeys": "false"
        }
      }
    },
    {
      "Sid": "EndOwn",
      "Effect": "Allow",
      "Action": [
        "ec2:TerminateInstances"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:instance/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "ReadOwn",
      "Effect": "Allow",
      "Action": [
        "ec2:GetConsoleOutput",
        "ec2:CreateImage"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:instance/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "DiscardOwn",
      "Effect": "Allow",
      "Action": [
        "ec2:DeleteVolume",
        "ec2:DeleteNetworkInterface",
        "ec2:ReleaseAddress",
        "ec2:DeletePlacementGroup",
        "ec2:DeregisterImage",
        "ec2:DeleteSnapshot"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:volume/*",
        "arn:aws:ec2:*:*:network-interface/*",
        "arn:aws:ec2:*:*:elastic-ip/*",
        "arn:aws:ec2:*:*:placement-group/*",
        "arn:aws:ec2:*::image/*",
        "arn:aws:ec2:*::snapshot/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "MakeTaggedImages",
      "Effect": "Allow",
      "Action": [
        "ec2:CreateImage"
      ],
      "Resource": [
        "arn:aws:ec2:*::image/*",
        "arn:aws:ec2:*::snapshot/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "HandOutTheRoleOfMachines",
      "Effect": "Allow",
      "Action": [
        "iam:PassRole"
      ],
      "Resource": [
        "arn:aws:iam::*:role/spotd-node-0123456789ab"
      ],
      "Condition": {
        "StringEquals": {
          "iam:PassedToService": "ec2.amazonaws.com"
        }
      }
    },
    {
      "Sid": "MakeTheRoleOfSpot",
      "Effect": "Allow",
      "Action": [
        "iam:CreateServiceLinkedRole"
      ],
      "Resource": [
        "arn:aws:iam::*:role/aws-service-role/spot.amazonaws.com/AWSServiceRoleForEC2Spot"
      ],
      "Condition": {
        "StringEquals": {
          "iam:AWSServiceName": "spot.amazonaws.com"
        }
      }
    },
    {
      "Sid": "Objects0",
      "Effect": "Allow",
      "Action": [
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload"
      ],
      "Resource": [
        "arn:aws:s3:::ours/spotd/*"
      ]
    },
    {
      "Sid": "List0",
      "Effect": "Allow",
      "Action": [
        "s3:ListBucket"
      ],
      "Resource": [
        "arn:aws:s3:::ours"
      ],
      "Condition": {
        "StringLike": {
          "s3:prefix": [
            "spotd/*"
          ]
        }
      }
    },
    {
      "Sid": "Objects1",
      "Effect": "Allow",
      "Action": [
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload"
      ],
      "Resource": [
        "arn:aws:s3:::runs/team/*"
      ]
    },
    {
      "Sid": "List1",
      "Effect": "Allow",
      "Action": [
        "s3:ListBucket"
      ],
      "Resource": [
        "arn:aws:s3:::runs"
      ],
      "Condition": {
        "StringLike": {
          "s3:prefix": [
            "team/*"
          ]
        }
      }
    }
  ]
}
JSON
}

resource "aws_iam_role_policy" "spotd_rehearse_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-rehearse-0123456789ab"
  role = aws_iam_role.spotd_control_0123456789ab.name
  policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "UseInterruptions",
      "Effect": "Allow",
      "Action": [
        "fis:CreateExperimentTemplate"
      ],
      "Resource": [
        "arn:aws:fis:*:*:action/aws:ec2:send-spot-instance-interruptions"
      ]
    },
    {
      "Sid": "MakeTemplates",
      "Effect": "Allow",
      "Action": [
        "fis:CreateExperimentTemplate"
      ],
      "Resource": [
        "arn:aws:fis:*:*:experiment-template/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "BeginExperiments",
      "Effect": "Allow",
      "Action": [
        "fis:StartExperiment"
      ],
      "Resource": [
        "arn:aws:fis:*:*:experiment/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "TagExperiments",
      "Effect": "Allow",
      "Action": [
        "fis:TagResource"
      ],
      "Resource": [
        "arn:aws:fis:*:*:experiment-template/*",
        "arn:aws:fis:*:*:experiment/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:RequestTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "UseOwnTemplates",
      "Effect": "Allow",
      "Action": [
        "fis:StartExperiment",
        "fis:DeleteExperimentTemplate"
      ],
      "Resource": [
        "arn:aws:fis:*:*:experiment-template/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "LookAtExperiments",
      "Effect": "Allow",
      "Action": [
        "fis:GetExperiment"
      ],
      "Resource": [
        "arn:aws:fis:*:*:experiment/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        }
      }
    },
    {
      "Sid": "HandOutTheRoleOfExperiments",
      "Effect": "Allow",
      "Action": [
        "iam:PassRole"
      ],
      "Resource": [
        "arn:aws:iam::*:role/spotd-interrupt-0123456789ab"
      ],
      "Condition": {
        "StringEquals": {
          "iam:PassedToService": "fis.amazonaws.com"
        }
      }
    },
    {
      "Sid": "MakeTheRoleOfFis",
      "Effect": "Allow",
      "Action": [
        "iam:CreateServiceLinkedRole"
      ],
      "Resource": [
        "arn:aws:iam::*:role/aws-service-role/fis.amazonaws.com/AWSServiceRoleForFIS"
      ],
      "Condition": {
        "StringEquals": {
          "iam:AWSServiceName": "fis.amazonaws.com"
        }
      }
    }
  ]
}
JSON
}

resource "aws_iam_instance_profile" "spotd_control_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-control-0123456789ab"
  role = aws_iam_role.spotd_control_0123456789ab.name
}

resource "aws_iam_role" "spotd_reaper_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-reaper-0123456789ab"
  assume_role_policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Principal": {
        "Service": "ec2.amazonaws.com",
        "AWS": "arn:aws:iam::${data.aws_caller_identity.here.account_id}:root"
      },
      "Action": "sts:AssumeRole"
    }
  ]
}
JSON
}

resource "aws_iam_role_policy" "spotd_reaper_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-reaper-0123456789ab"
  role = aws_iam_role.spotd_reaper_0123456789ab.name
  policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "Look",
      "Effect": "Allow",
      "Action": [
        "ec2:DescribeInstances"
      ],
      "Resource": [
        "*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ]
        }
      }
    },
    {
      "Sid": "EndOwn",
      "Effect": "Allow",
      "Action": [
        "ec2:TerminateInstances"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:instance/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        }
      }
    }
  ]
}
JSON
}

resource "aws_iam_instance_profile" "spotd_reaper_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-reaper-0123456789ab"
  role = aws_iam_role.spotd_reaper_0123456789ab.name
}

resource "aws_iam_role" "spotd_node_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-node-0123456789ab"
  assume_role_policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Principal": {
        "Service": "ec2.amazonaws.com"
      },
      "Action": "sts:AssumeRole"
    }
  ]
}
JSON
}

resource "aws_iam_role_policy" "spotd_node_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-node-0123456789ab"
  role = aws_iam_role.spotd_node_0123456789ab.name
  policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "Objects0",
      "Effect": "Allow",
      "Action": [
        "s3:GetObject",
        "s3:PutObject",
        "s3:DeleteObject",
        "s3:AbortMultipartUpload"
      ],
      "Resource": [
        "arn:aws:s3:::runs/team/jobs/*"
      ]
    },
    {
      "Sid": "List0",
      "Effect": "Allow",
      "Action": [
        "s3:ListBucket"
      ],
      "Resource": [
        "arn:aws:s3:::runs"
      ],
      "Condition": {
        "StringLike": {
          "s3:prefix": [
            "team/jobs/*"
          ]
        }
      }
    },
    {
      "Sid": "NoOtherObject",
      "Effect": "Deny",
      "Action": [
        "s3:*"
      ],
      "NotResource": [
        "arn:aws:s3:::runs/team/jobs/*",
        "arn:aws:s3:::runs"
      ]
    },
    {
      "Sid": "NoControl",
      "Effect": "Deny",
      "Action": [
        "ec2:RunInstances",
        "ec2:CreateFleet",
        "ec2:RequestSpotInstances",
        "ec2:RequestSpotFleet",
        "ec2:StartInstances",
        "ec2:TerminateInstances",
        "ec2:CreateTags",
        "ec2:DeleteTags",
        "ec2:DescribeInstanceAttribute",
        "ec2:ModifyInstanceAttribute",
        "iam:*",
        "sts:AssumeRole*",
        "organizations:*",
        "ssm:*",
        "secretsmanager:*"
      ],
      "Resource": [
        "*"
      ]
    }
  ]
}
JSON
}

resource "aws_iam_instance_profile" "spotd_node_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-node-0123456789ab"
  role = aws_iam_role.spotd_node_0123456789ab.name
}

resource "aws_iam_role" "spotd_interrupt_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-interrupt-0123456789ab"
  assume_role_policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Principal": {
        "Service": "fis.amazonaws.com"
      },
      "Action": "sts:AssumeRole",
      "Condition": {
        "StringEquals": {
          "aws:SourceAccount": "${data.aws_caller_identity.here.account_id}"
        }
      }
    }
  ]
}
JSON
}

resource "aws_iam_role_policy" "spotd_interrupt_0123456789ab" {
  provider = aws.us_east_1
  name = "spotd-interrupt-0123456789ab"
  role = aws_iam_role.spotd_interrupt_0123456789ab.name
  policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "Look",
      "Effect": "Allow",
      "Action": [
        "ec2:DescribeInstances"
      ],
      "Resource": [
        "*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ]
        }
      }
    },
    {
      "Sid": "TakeBackOwn",
      "Effect": "Allow",
      "Action": [
        "ec2:SendSpotInstanceInterruptions"
      ],
      "Resource": [
        "arn:aws:ec2:*:*:instance/*"
      ],
      "Condition": {
        "StringEquals": {
          "aws:RequestedRegion": [
            "us-east-1",
            "eu-north-1"
          ],
          "aws:ResourceTag/spotd-deployment": "0123456789ab"
        }
      }
    }
  ]
}
JSON
}

data "aws_availability_zones" "us_east_1" {
  provider = aws.us_east_1
  state = "available"
  filter {
    name = "zone-type"
    values = ["availability-zone"]
  }
}

resource "aws_vpc" "us_east_1" {
  provider = aws.us_east_1
  cidr_block = "10.213.0.0/16"
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_subnet" "us_east_1" {
  provider = aws.us_east_1
  for_each = toset(data.aws_availability_zones.us_east_1.names)
  vpc_id = aws_vpc.us_east_1.id
  availability_zone = each.key
  cidr_block = cidrsubnet(aws_vpc.us_east_1.cidr_block, 4, index(["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o"], substr(each.key, -1, 1)))
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_vpc_endpoint" "us_east_1" {
  provider = aws.us_east_1
  vpc_id = aws_vpc.us_east_1.id
  service_name = "com.amazonaws.us-east-1.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids = [aws_vpc.us_east_1.main_route_table_id]
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_security_group" "us_east_1_jump" {
  provider = aws.us_east_1
  name = "spotd-jump"
  description = "Made for spotd"
  vpc_id = aws_vpc.us_east_1.id
  ingress {
    from_port = 22
    to_port = 22
    protocol = "tcp"
    cidr_blocks = ["203.0.113.7/32"]
  }
  egress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
  tags = {
    "spotd-jump" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_security_group" "us_east_1" {
  provider = aws.us_east_1
  name = "spotd"
  description = "Made for spotd"
  vpc_id = aws_vpc.us_east_1.id
  ingress {
    from_port = 22
    to_port = 22
    protocol = "tcp"
    security_groups = [aws_security_group.us_east_1_jump.id]
  }
  ingress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    self = true
  }
  egress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
  egress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    self = true
  }
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_route_table" "us_east_1_jump" {
  provider = aws.us_east_1
  vpc_id = aws_vpc.us_east_1.id
  tags = {
    "spotd-jump" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_internet_gateway" "us_east_1" {
  provider = aws.us_east_1
  vpc_id = aws_vpc.us_east_1.id
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_route" "us_east_1" {
  provider = aws.us_east_1
  route_table_id = aws_route_table.us_east_1_jump.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id = aws_internet_gateway.us_east_1.id
}

resource "aws_subnet" "us_east_1_jump" {
  provider = aws.us_east_1
  vpc_id = aws_vpc.us_east_1.id
  cidr_block = "10.213.255.0/24"
  tags = {
    "spotd-jump" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_route_table_association" "us_east_1_jump" {
  provider = aws.us_east_1
  route_table_id = aws_route_table.us_east_1_jump.id
  subnet_id = aws_subnet.us_east_1_jump.id
}

resource "aws_sqs_queue" "us_east_1" {
  provider = aws.us_east_1
  name = "spotd-warnings"
  message_retention_seconds = 3600
}

resource "aws_cloudwatch_event_rule" "us_east_1" {
  provider = aws.us_east_1
  name = "spotd-warnings"
  event_pattern = <<-JSON
{
  "source": [
    "aws.ec2"
  ],
  "detail-type": [
    "EC2 Spot Instance Interruption Warning",
    "EC2 Instance Rebalance Recommendation"
  ]
}
JSON
}

resource "aws_sqs_queue_policy" "us_east_1" {
  provider = aws.us_east_1
  queue_url = aws_sqs_queue.us_east_1.url
  policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Principal": {
        "Service": "events.amazonaws.com"
      },
      "Action": "sqs:SendMessage",
      "Resource": "${aws_sqs_queue.us_east_1.arn}",
      "Condition": {
        "ArnEquals": {
          "aws:SourceArn": "${aws_cloudwatch_event_rule.us_east_1.arn}"
        }
      }
    }
  ]
}
JSON
}

resource "aws_cloudwatch_event_target" "us_east_1" {
  provider = aws.us_east_1
  rule = aws_cloudwatch_event_rule.us_east_1.name
  target_id = "spotd"
  arn = aws_sqs_queue.us_east_1.arn
}

data "aws_availability_zones" "eu_north_1" {
  provider = aws.eu_north_1
  state = "available"
  filter {
    name = "zone-type"
    values = ["availability-zone"]
  }
}

resource "aws_vpc" "eu_north_1" {
  provider = aws.eu_north_1
  cidr_block = "10.213.0.0/16"
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_subnet" "eu_north_1" {
  provider = aws.eu_north_1
  for_each = toset(data.aws_availability_zones.eu_north_1.names)
  vpc_id = aws_vpc.eu_north_1.id
  availability_zone = each.key
  cidr_block = cidrsubnet(aws_vpc.eu_north_1.cidr_block, 4, index(["a","b","c","d","e","f","g","h","i","j","k","l","m","n","o"], substr(each.key, -1, 1)))
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_vpc_endpoint" "eu_north_1" {
  provider = aws.eu_north_1
  vpc_id = aws_vpc.eu_north_1.id
  service_name = "com.amazonaws.eu-north-1.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids = [aws_vpc.eu_north_1.main_route_table_id]
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_security_group" "eu_north_1_jump" {
  provider = aws.eu_north_1
  name = "spotd-jump"
  description = "Made for spotd"
  vpc_id = aws_vpc.eu_north_1.id
  ingress {
    from_port = 22
    to_port = 22
    protocol = "tcp"
    cidr_blocks = ["203.0.113.7/32"]
  }
  egress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
  tags = {
    "spotd-jump" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_security_group" "eu_north_1" {
  provider = aws.eu_north_1
  name = "spotd"
  description = "Made for spotd"
  vpc_id = aws_vpc.eu_north_1.id
  ingress {
    from_port = 22
    to_port = 22
    protocol = "tcp"
    security_groups = [aws_security_group.eu_north_1_jump.id]
  }
  ingress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    self = true
  }
  egress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    cidr_blocks = ["0.0.0.0/0"]
  }
  egress {
    from_port = 0
    to_port = 0
    protocol = "-1"
    self = true
  }
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_route_table" "eu_north_1_jump" {
  provider = aws.eu_north_1
  vpc_id = aws_vpc.eu_north_1.id
  tags = {
    "spotd-jump" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_internet_gateway" "eu_north_1" {
  provider = aws.eu_north_1
  vpc_id = aws_vpc.eu_north_1.id
  tags = {
    "spotd-network" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_route" "eu_north_1" {
  provider = aws.eu_north_1
  route_table_id = aws_route_table.eu_north_1_jump.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id = aws_internet_gateway.eu_north_1.id
}

resource "aws_subnet" "eu_north_1_jump" {
  provider = aws.eu_north_1
  vpc_id = aws_vpc.eu_north_1.id
  cidr_block = "10.213.255.0/24"
  tags = {
    "spotd-jump" = "jump"
    "Name" = "spotd"
  }
}

resource "aws_route_table_association" "eu_north_1_jump" {
  provider = aws.eu_north_1
  route_table_id = aws_route_table.eu_north_1_jump.id
  subnet_id = aws_subnet.eu_north_1_jump.id
}

resource "aws_sqs_queue" "eu_north_1" {
  provider = aws.eu_north_1
  name = "spotd-warnings"
  message_retention_seconds = 3600
}

resource "aws_cloudwatch_event_rule" "eu_north_1" {
  provider = aws.eu_north_1
  name = "spotd-warnings"
  event_pattern = <<-JSON
{
  "source": [
    "aws.ec2"
  ],
  "detail-type": [
    "EC2 Spot Instance Interruption Warning",
    "EC2 Instance Rebalance Recommendation"
  ]
}
JSON
}

resource "aws_sqs_queue_policy" "eu_north_1" {
  provider = aws.eu_north_1
  queue_url = aws_sqs_queue.eu_north_1.url
  policy = <<-JSON
{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Effect": "Allow",
      "Principal": {
        "Service": "events.amazonaws.com"
      },
      "Action": "sqs:SendMessage",
      "Resource": "${aws_sqs_queue.eu_north_1.arn}",
      "Condition": {
        "ArnEquals": {
          "aws:SourceArn": "${aws_cloudwatch_event_rule.eu_north_1.arn}"
        }
      }
    }
  ]
}
JSON
}

resource "aws_cloudwatch_event_target" "eu_north_1" {
  provider = aws.eu_north_1
  rule = aws_cloudwatch_event_rule.eu_north_1.name
  target_id = "spotd"
  arn = aws_sqs_queue.eu_north_1.arn
}
